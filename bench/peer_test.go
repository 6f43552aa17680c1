package main

import (
	"testing"
	"time"
)

// TestFigureBetween: records that are there at the first moment do not count.
func TestFigureBetween(t *testing.T) {
	t.Parallel()
	at := time.Now()
	first := arrival{at, 1000, 2, usage{postgres: 5, kafka: 7}}
	last := arrival{at.Add(2 * time.Second), 21_000, 3, usage{postgres: 5.5, kafka: 7.2}}
	f := figureBetween(first, last)
	if f.Events != 20_000 || f.Rate != 10_000 {
		t.Errorf("%d events at %v/s", f.Events, f.Rate)
	}
	if f.CPU != 50 || f.PostgresCPU != 25 || f.KafkaCPU < 9.99 || f.KafkaCPU > 10.01 {
		t.Errorf("CPU an event: own %v, Postgres %v, Kafka %v", f.CPU, f.PostgresCPU, f.KafkaCPU)
	}
}
