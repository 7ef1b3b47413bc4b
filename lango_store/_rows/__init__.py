"""The boundary to the database: column types, and values encoded as drivers take them."""
