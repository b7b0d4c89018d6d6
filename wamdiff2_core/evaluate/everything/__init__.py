"""All benchmarks in one table: `benchmark` is the door that each of them goes through, `registry` names them."""
