package sql

import (
	"fmt"
	"time"
)

// Interval is d as Postgres reads an interval.
func Interval(d time.Duration) string { return fmt.Sprintf("%d microseconds", d.Microseconds()) }

// Seconds is a number of seconds that Postgres returned; what is negative, by clocks that differ, is 0.
func Seconds(s float64) time.Duration { return max(time.Duration(s*float64(time.Second)), 0) }
