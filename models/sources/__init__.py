"""Model repositories in object stores and on web servers, and checked copies of them on this machine."""
