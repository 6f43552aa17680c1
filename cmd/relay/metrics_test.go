package main

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

func itoa(n int) string { return strconv.Itoa(n) }

// TestMetrics: the metrics of a run that published, and docs/metrics.md lists exactly these.
func TestMetrics(t *testing.T) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.Topic(t, 1)
	relay := inProcess(t, settings(db, kafkatest.Brokers(t)...))
	fill(t, db, topic, 700)
	awaitDrained(t, db)
	var figures string
	pgtest.Await(t, "the count of settled events", func() (_ bool, err error) {
		_, figures, err = relay.get("/metrics")
		return strings.Contains(figures, "effectonce_relay_settled_events_total 700\n"), err
	})
	for _, want := range []string{
		"effectonce_relay_published_events_total 700\n", "effectonce_relay_lanes_owned 32\n",
		`effectonce_relay_outage{system="kafka"} 0`, `effectonce_relay_kafka_acked_events_total{topic="` + topic +
			`"} 700`,
		"go_goroutines ", "process_resident_memory_bytes ",
	} {
		if !strings.Contains(figures, want) {
			t.Errorf("no %s", want)
		}
	}
	var served []string
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (effectonce_relay_\w+) `).FindAllStringSubmatch(figures, -1) {
		served = append(served, m[1])
	}
	manual, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(effectonce_relay_\\w+)").FindAllStringSubmatch(string(manual),
		-1) {
		documented = append(documented, m[1])
	}
	slices.Sort(served)
	slices.Sort(documented)
	if !slices.Equal(served, documented) {
		t.Errorf("served and documented metrics differ:\n%v\n%v", served, documented)
	}
}
