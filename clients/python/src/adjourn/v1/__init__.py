"""The API, as generated from proto/adjourn/v1. Do not edit."""
