//go:build unix

package consumer_test

import (
	"bytes"
	"context"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// BenchmarkConsume reads 300,000 records of 512 bytes with all of this framework's headers from a real Kafka into a
// handler that does nothing. Run it with -benchtime 3x; GOMAXPROCS=1 shows the rate of one core.
func BenchmarkConsume(b *testing.B) {
	const partitions, each = 4, 75_000
	topic := kafkatest.Topic(b, partitions)
	payload := bytes.Repeat([]byte("x"), 512)
	for p := range int32(partitions) {
		var rs []kafkatest.Record
		for i := range each {
			e := event.Event{
				ID: event.NewID(), Source: "payments", Tenant: "acme", Type: "PaymentCreated",
				ContentType: event.ContentTypeJSON, Payload: payload,
				Position: event.Position{Epoch: uuid.NewString() + ".1", Lane: 3, Seq: int64(i)},
			}
			e.Time, _ = event.IDTime(e.ID)
			e.Headers = map[string]string{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
			r := kafkatest.Record{Partition: p, Key: []byte(strconv.Itoa(i)), Value: payload}
			for _, h := range event.AppendHeaders(nil, &e) {
				r.Headers = append(r.Headers, kafkatest.Header(h))
			}
			rs = append(rs, r)
		}
		for part := range slices.Chunk(rs, 5000) {
			produceAt(b, kafkatest.Brokers(b), topic, part)
		}
	}
	b.ReportAllocs()
	before := cpu()
	b.ResetTimer()
	for range b.N {
		var n atomic.Int64
		done := make(chan struct{})
		m := start(b, counting(func(events int) {
			if n.Add(int64(events)) == partitions*each {
				close(done)
			}
		}), topic, config(uuid.NewString()))
		<-done
		b.StopTimer()
		m.stop(b)
		b.StartTimer()
	}
	b.ReportMetric(float64(b.N*partitions*each)/b.Elapsed().Seconds(), "records/s")
	// varies less on a busy machine
	b.ReportMetric(float64(b.N*partitions*each)/(cpu()-before).Seconds(), "records/cpu-s")
}

// cpu returns this process's CPU time.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func counting(add func(int)) inbox.HandlerFunc {
	return func(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
		add(len(events))
		return applied(len(events)), nil
	}
}
