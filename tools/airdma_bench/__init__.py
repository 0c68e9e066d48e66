"""Measures airdma beside TCP on one link, keeps every sample, and writes table and plots from them."""
