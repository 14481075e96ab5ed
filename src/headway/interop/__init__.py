"""Import, export and run models in the formats of other toolkits."""
