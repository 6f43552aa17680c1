package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// mostLines is how many records of one fetch are shown, so that a load test does not fill the terminal.
const mostLines = 50

// stream shows what is written to Kafka from now on, without payloads.
type stream struct {
	client *kgo.Client
	out    *lines
}

func newStream(brokers []string, out *lines) (*stream, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeRegex(), kgo.ConsumeTopics(".*"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AfterMilli(time.Now().UnixMilli())),
		// A topic that a service has just made is looked for this often.
		kgo.MetadataMaxAge(2*time.Second), kgo.MetadataMinAge(time.Second), kgo.FetchMaxWait(time.Second))
	if err != nil {
		return nil, err
	}
	return &stream{client, out}, nil
}

func (s *stream) close() { s.client.Close() }

// run shows until ctx ends. What cannot be read is not shown: the relay and the pages say what is wrong.
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

// recordLine is a record in a line: when, where, key, type, size and id.
func recordLine(r *kgo.Record) string {
	where := fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset)
	return strings.TrimRight(fmt.Sprintf("%s  %-22s  %-14s  %-16s  %5d B  %s", r.Timestamp.Format("15:04:05.000"),
		where, plain(string(r.Key)), plain(header(r, "ce_type")), len(r.Value), plain(header(r, "ce_id"))), " ")
}

// plain is a text without what a terminal would act on.
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
