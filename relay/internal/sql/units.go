package sql

import (
	"fmt"
	"time"
)

// Interval formats d as a Postgres interval.
func Interval(d time.Duration) string { return fmt.Sprintf("%d microseconds", d.Microseconds()) }

// Seconds converts a number of seconds from Postgres; a negative one, from clocks that differ, is 0.
func Seconds(s float64) time.Duration { return max(time.Duration(s*float64(time.Second)), 0) }
