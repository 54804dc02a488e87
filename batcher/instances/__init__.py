"""Which waiting model runs next on which partition, where a rule of the user's choice shares the partitions."""
