"""Read, write and run models of other toolkits."""
