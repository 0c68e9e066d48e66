"""The programs of a distribution that must run on airdma, unmodified: a table, and what runs and
records its lines.
"""
