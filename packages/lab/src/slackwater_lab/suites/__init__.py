"""TPC-H, TPC-DS and Nexmark as views, over small histories, compared with DuckDB after every commit."""
