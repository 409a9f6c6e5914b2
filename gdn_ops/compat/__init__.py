"""gdn_ops under the function names of other projects."""
