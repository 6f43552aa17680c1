package ledger_test

import (
	"net"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestMetricsMatchTheDocs compares the metrics that a worker serves with those that docs/metrics.md lists.
func TestMetricsMatchTheDocs(t *testing.T) {
	t.Parallel()
	db, topic := pgtest.New(t), kafkatest.Topic(t, 1)
	cfg := config(t, db, topic)
	var err error
	if cfg.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	startWorker(t, cfg)
	e := paymentEvent(t, newPayment(1))
	e.Topic = topic
	publish(t, []event.Event{e}...)
	var served string
	pgtest.Await(t, "the event and the lag in the metrics", func() (bool, error) {
		_, served = get(t, "http://"+cfg.Listener.Addr().String()+"/metrics")
		return strings.Contains(served, `effectonce_inbox_events_total{consumer="ledger",outcome="applied"} 1`) &&
			strings.Contains(served, `effectonce_consumer_lag{consumer="ledger",partition="0",topic="`+topic+`"} 0`) &&
			!strings.Contains(served, `effectonce_inbox_sampled_timestamp_seconds{consumer="ledger"} 0`), nil
	})
	names := func(pattern, text string) (list []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1) {
			list = append(list, m[1])
		}
		slices.Sort(list)
		return list
	}
	docs, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	got := names(`(?m)^# TYPE (effectonce_\w+) `, served)
	// It has no series before the first failure.
	got = append(got, "effectonce_inbox_failed_events_total")
	slices.Sort(got)
	if want := names("(?m)^\\| `(effectonce_(?:inbox|consumer)_\\w+)", string(docs)); !slices.Equal(got, want) {
		t.Errorf("served and documented metrics differ:\n%v\n%v", got, want)
	}
}
