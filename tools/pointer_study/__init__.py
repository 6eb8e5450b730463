"""The pointer selector's study: arms around the recipe times seeds, a table and a figure."""
