"""Judges of free answers. A judge has a name that says what it is: a stand-in never carries that of an official one."""
