package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// mostLines bounds the records shown of one fetch, so that a load test does not flood the terminal.
const mostLines = 50

// stream prints new records of Kafka, without payloads.
type stream struct {
	client *kgo.Client
	out    *lines
}

func newStream(brokers []string, out *lines) (*stream, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeRegex(), kgo.ConsumeTopics(".*"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(time.Now().UnixMilli())),
		// How soon new topics are found.
		kgo.MetadataMaxAge(2*time.Second), kgo.MetadataMinAge(time.Second), kgo.FetchMaxWait(time.Second))
	if err != nil {
		return nil, err
	}
	return &stream{client, out}, nil
}

func (s *stream) close() { s.client.Close() }

// run prints until ctx ends. It ignores errors: the relay and the pages report them.
func (s *stream) run(ctx context.Context) error {
	for ctx.Err() == nil {
		shown := 0
		fetches := s.client.PollFetches(ctx)
		fetches.EachRecord(func(r *kgo.Record) {
			if shown++; shown <= mostLines {
				fmt.Fprintln(s.out, recordLine(r))
			}
		})
		if more := shown - mostLines; more > 0 {
			fmt.Fprintf(s.out, "%24s and %d more\n", "", more)
		}
	}
	return nil
}

// recordLine formats a record's time, topic, partition, offset, key, type, size and id.
func recordLine(r *kgo.Record) string {
	where := fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset)
	return strings.TrimRight(fmt.Sprintf("%s  %-22s  %-14s  %-16s  %5d B  %s", r.Timestamp.Format("15:04:05.000"),
		where, plain(string(r.Key)), plain(header(r, "ce_type")), len(r.Value), plain(header(r, "ce_id"))), " ")
}

// plain replaces control characters.
func plain(text string) string {
	if quoted := strconv.QuoteToGraphic(text); quoted != `"`+text+`"` {
		return quoted
	}
	return text
}

func header(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
