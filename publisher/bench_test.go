package publisher

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

// load returns n events as a relay claims them: 512 bytes of JSON that compresses as business data does, with 100,000
// keys.
func load(topic string, n int) []event.Event {
	rng := rand.New(rand.NewPCG(3, 4))
	out := make([]event.Event, n)
	words := []string{
		"settled", "pending", "Berlin", "Lisbon", "invoice", "refund", "EUR", "USD", "card", "transfer",
		"monthly", "customer",
	}
	for i := range out {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"payment_id":"%s","account_id":"acc-%d","amount":%d,"currency":"EUR","note":"`, event.NewID(),
			rng.IntN(100_000), rng.IntN(1_000_000))
		for b.Len() < 510 {
			fmt.Fprintf(&b, "%s %x ", words[rng.IntN(len(words))], rng.Uint32())
		}
		b.Truncate(510)
		b.WriteString(`"}`)
		out[i] = event.Event{
			ID: event.NewID(), Source: "payments", Topic: topic, Key: fmt.Sprintf("acc-%d", rng.IntN(100_000)),
			Type: "PaymentCreated", ContentType: event.ContentTypeJSON, Payload: b.Bytes(), Time: time.Now(),
			Position: event.Position{
				Lane: int16(i % 32), Epoch: "0198b2f0-5a3e-7c11-9d3e-2f1f6a7b8c9d.1",
				Seq: int64(i),
			},
		}
	}
	return out
}

// BenchmarkReal publishes 300,000 events of 512 bytes to 8 partitions from two callers, 4,000 a call:
//
//	go test ./publisher -run xxx -bench Real -benchtime 1x
func BenchmarkReal(b *testing.B) {
	const callers, per, total = 2, 4000, 300_000
	for _, compression := range []string{
		CompressionNone, CompressionSnappy, CompressionLZ4, CompressionZstd,
		CompressionGzip,
	} {
		b.Run(compression, func(b *testing.B) {
			topic := kafkatest.Topic(b, 8)
			var mu sync.Mutex
			var sent int
			k := newKafka(b, kafkatest.Brokers(b), Config{Compression: compression, Observer: Observer{
				Produced: func(p ProducedInfo) { mu.Lock(); sent += p.Bytes; mu.Unlock() },
			}})
			sets := make([][]event.Event, callers)
			for c := range sets {
				sets[c] = load(topic, per)
			}
			allAcked(b, k.Publish(b.Context(), sets[0])) // opens the connections and creates the topic's files
			sent = 0
			ours, theirs := cpu(b)
			started := time.Now()
			for range b.N {
				var wg sync.WaitGroup
				for c := range callers {
					wg.Go(func() {
						for range total / per / callers {
							for _, err := range k.Publish(context.Background(), sets[c]) {
								if err != nil {
									b.Error(err)
									return
								}
							}
						}
					})
				}
				wg.Wait()
			}
			n := float64(b.N * (total / per / callers) * callers * per)
			b.ReportMetric(n/time.Since(started).Seconds(), "events/s")
			b.ReportMetric(float64(sent)/n, "wire-B/event")
			b.ReportMetric(0, "ns/op")
			ours2, theirs2 := cpu(b)
			b.ReportMetric(float64((ours2-ours).Nanoseconds())/1000/n, "µs-cpu/event")
			b.ReportMetric(float64((theirs2-theirs).Nanoseconds())/1000/n, "µs-broker-cpu/event")
		})
	}
}

// cpu returns the CPU time of this process and of its children, the brokers. On a busy machine it varies less than a
// rate. It is zero without /proc.
func cpu(b *testing.B) (self, children time.Duration) {
	b.Helper()
	of := func(pid string) time.Duration {
		stat, _ := os.ReadFile("/proc/" + pid + "/stat")
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 13 {
			return 0
		}
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		return time.Duration(user+system) * 10 * time.Millisecond // clock ticks are 100 a second
	}
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		pids, _ := os.ReadFile(list)
		for _, pid := range strings.Fields(string(pids)) {
			children += of(pid)
		}
	}
	return of("self"), children
}

// BenchmarkEncode compares the encoder with kafka-go's, on the batch of one partition.
func BenchmarkEncode(b *testing.B) {
	events := load("t", 1000)
	order := make([]int32, len(events))
	for i := range order {
		order[i] = int32(i)
	}
	for name, codec := range map[string]kafka.Compression{
		"none": 0, "snappy": kafka.Snappy, "lz4": kafka.Lz4,
		"zstd": kafka.Zstd,
	} {
		b.Run("ours/"+name, func(b *testing.B) {
			b.ReportAllocs()
			bt := batch{compression: codec}
			for range b.N {
				bt.fill(events, order, 1<<30, len(order))
				if err := bt.seal(time.Now()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
		})
		b.Run("kafka-go/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				records := make([]kafka.Record, len(events))
				for i := range events {
					e := &events[i]
					hs := event.AppendHeaders(nil, e)
					headers := make([]kafka.Header, len(hs))
					for j := range hs {
						headers[j] = kafka.Header(hs[j])
					}
					records[i] = kafka.Record{
						Key: kafka.NewBytes([]byte(e.Key)), Value: kafka.NewBytes(e.Payload),
						Headers: headers,
					}
				}
				rs := protocol.RecordSet{
					Version: 2, Attributes: protocol.Attributes(codec),
					Records: kafka.NewRecordReader(records...),
				}
				if _, err := rs.WriteTo(io.Discard); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
		})
	}
}

// BenchmarkPublish measures a Publish call of 4,000 events without a network.
func BenchmarkPublish(b *testing.B) {
	k := newKafka(b, []string{"nowhere:1"}, Config{
		Compression: CompressionNone,
		Transport:   &fake{partitions: 8, produce: discard},
	})
	events := load("t", 4000)
	b.ReportAllocs()
	for range b.N {
		for _, err := range k.Publish(context.Background(), events) {
			if err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(events)), "ns/event")
}

// discard encodes a request as the transport does, and acknowledges it.
func discard(_ context.Context, r request) *produce.ResponsePartition {
	if err := protocol.WriteRequest(io.Discard, 8, 1, "c", r.message); err != nil {
		panic(err)
	}
	return &produce.ResponsePartition{}
}
