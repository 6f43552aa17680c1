package interop

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/relay"
)

// BenchmarkRelay drains 20,000 messages of 512 bytes to Kafka, by our publisher and by watermill-kafka's.
func BenchmarkRelay(b *testing.B) {
	const n = 20_000
	payload := strings.Repeat("x", 512)
	for name, make := range map[string]func(testing.TB) relay.Publisher{
		"publisher":       func(t testing.TB) relay.Publisher { return newPublisher(t) },
		"watermill-kafka": func(t testing.TB) relay.Publisher { return newWatermillPublisher(t) },
	} {
		b.Run(name, func(b *testing.B) {
			db, topic := pgtest.New(b, migrations.Outbox), kafkatest.Topic(b, 8)
			to := make(b)
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				for range n / 1000 {
					messages := []*message.Message{}
					for i := range 1000 {
						messages = append(messages, newMessage(fmt.Sprint("k", i), payload))
					}
					publishTx(b, db, topic, messages...)
				}
				b.StartTimer()
				drain(b, db, to)
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
