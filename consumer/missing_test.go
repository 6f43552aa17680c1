package consumer

import (
	"bytes"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/segmentio/kafka-go"
)

// A topic that is missing is not consumed, and nothing else says so: the line comes again, and the state has it.
func TestMissingTopicIsSaidAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := &Consumer{cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		c.outage = &outage{log: c.cfg.Logger, observer: &c.cfg.Observer}
		missing := map[string]error{"oders": kafka.UnknownTopicOrPartition}
		for range 60 { // an hour
			for range 12 {
				c.logMissing(missing)
				passes(5 * time.Second)
			}
		}
		if n := bytes.Count(log.Bytes(), []byte("topics are missing")); n < 10 || n > 13 {
			t.Errorf("%d lines in an hour", n)
		}
		if got := c.Status().Missing; !slices.Equal(got, []string{"oders"}) {
			t.Errorf("the state has %q", got)
		}
		c.logMissing(nil)
		c.logMissing(nil)
		if got := c.Status().Missing; len(got) > 0 || bytes.Count(log.Bytes(), []byte("no topic is missing")) != 1 {
			t.Errorf("once it is there: the state has %q, the log\n%s", got, log.Bytes())
		}
	})
}
