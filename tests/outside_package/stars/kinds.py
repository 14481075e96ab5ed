"""What the entry point in the group ``headway.kinds`` names: it registers the architecture and the task."""

from headway import tasks
from headway.models import registry
from stars.bag_of_words import BagOfWords, BagOfWordsConfig
from stars.rating import RatingTask

registry.register(registry.Architecture(BagOfWordsConfig, BagOfWords, "labels"))
tasks.register(RatingTask())
