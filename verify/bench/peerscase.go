package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
)

const nameDebezium = "Debezium outbox router"

// debeziumSettings stand beside the figures. The JVM's options are those of Kafka's own connect-standalone.sh.
const debeziumSettings = kafkatest.DebeziumVersion + " in Kafka Connect standalone (-Xmx2G, G1; one process for all " +
	"turns), max.batch.size=8192 max.queue.size=32768 poll.interval.ms=5, producer acks=all linger.ms=5 " +
	"batch.size=262144 compression.type=snappy, rows inserted in transactions of 1000, from the first record in " +
	"Kafka to the last"

// connectConfig is that of the process; its connectors are managed over REST.
func connectConfig(brokers []string) kafkatest.ConnectConfig {
	return kafkatest.ConnectConfig{
		Brokers: brokers,
		Java: []string{
			"-Xms256M", "-Xmx2G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
			"-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true",
		},
		Worker: []string{
			"producer.acks=all", "producer.linger.ms=5", "producer.batch.size=262144",
			"producer.buffer.memory=67108864", "producer.compression.type=snappy",
		},
	}
}

// peersCase compares the relay with Debezium, in turns, with the same payloads, broker and number of partitions.
func peersCase(ctx context.Context, s *stack, o options, rep *report) error {
	rep.note("peers", fmt.Sprintf("Drains of events of %d bytes with %d keys; relay: %d events; Debezium: %d, %s",
		payloadSize, keys, o.events, o.debeziumEvents, debeziumSettings))
	if err := s.exec(ctx, queryDebeziumTable, queryDebeziumPublication); err != nil {
		return err
	}
	payload := payloads(distinct)
	connect, err := kafkatest.StartConnect(ctx, connectConfig(s.brokers))
	if err != nil {
		return err
	}
	defer connect.Close()
	for turn := range o.repeats + 1 {
		f, err := s.drainOnce(ctx, o, o.events, payload)
		if err != nil {
			return err
		}
		f.Case, f.Name, f.Turn = "peers", nameRelay, turn
		rep.add(f)
		limited, cancel := context.WithTimeout(ctx, 5*time.Minute) // it may hang
		f, err = s.debeziumOnce(limited, connect, fmt.Sprintf("debezium_%d", turn), o.debeziumEvents, payload)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", nameDebezium, err)
		}
		f.Case, f.Name, f.Turn = "peers", nameDebezium, turn
		rep.add(f)
	}
	rep.ratio("peers", nameRelay, nameDebezium, 10)
	return nil
}

// debeziumConnector is a connector's configuration; the table holds the topic in aggregatetype.
func debeziumConnector(server *pgx.ConnConfig, slot string) map[string]string {
	return map[string]string{
		"connector.class":             "io.debezium.connector.postgresql.PostgresConnector",
		"tasks.max":                   "1",
		"plugin.name":                 "pgoutput",
		"database.hostname":           server.Host,
		"database.port":               strconv.Itoa(int(server.Port)),
		"database.user":               server.User,
		"database.password":           "unused",
		"database.dbname":             server.Database,
		"topic.prefix":                "debezium",
		"table.include.list":          "public.debezium_outbox",
		"slot.name":                   slot,
		"publication.name":            "debezium",
		"publication.autocreate.mode": "disabled",
		"snapshot.mode":               "no_data",
		"tombstones.on.delete":        "false",
		"max.batch.size":              "8192",
		"max.queue.size":              "32768",
		"poll.interval.ms":            "5",
		"transforms":                  "outbox",
		"transforms.outbox.type":      "io.debezium.transforms.outbox.EventRouter",
		"transforms.outbox.route.topic.replacement": "${routedByValue}",
	}
}

// arrival is the progress of a peer at a moment, with its resource use so far.
type arrival struct {
	at      time.Time
	records int
	own     float64 // CPU seconds of its process
	servers usage
}

// debeziumOnce creates a slot, inserts n rows, starts a connector on the slot, and measures the time from the first
// record in the topic to the last, without the start and the WAL of other tables.
func (s *stack) debeziumOnce(ctx context.Context, c *kafkatest.Connect, name string, n int, payload [][]byte) (f figure,
	err error,
) {
	topic, drop, err := s.topic(ctx)
	if err != nil {
		return f, err
	}
	defer drop()
	server, err := pgx.ParseConfig(s.pg.URL())
	if err != nil {
		return f, err
	}
	if err := s.fillDebezium(ctx, name, topic, n, payload); err != nil {
		return f, fmt.Errorf("fill: %w", err)
	}
	began := s.arrivalOf(c, 0)
	if err := c.Add(ctx, name, debeziumConnector(server, name)); err != nil {
		return f, err
	}
	first, last, err := s.follow(ctx, c, name, topic, n)
	if err != nil {
		return f, err
	}
	if first.records >= n {
		first = began // so few that they came at once: include the start
	}
	if err := c.Remove(ctx, name); err != nil {
		return f, err
	}
	used, seconds := last.servers.minus(first.servers), last.at.Sub(first.at).Seconds()
	f.Events, f.Seconds, f.PeakKiB = last.records-first.records, seconds, peakOf(strconv.Itoa(c.PID()))
	per := 1e6 / float64(max(f.Events, 1))
	f.Rate, f.CPU = float64(f.Events)/seconds, (last.own-first.own)*per
	f.PostgresCPU, f.KafkaCPU = used.postgres*per, used.kafka*per
	return f, c.Await(ctx, func() (bool, error) {
		dropped, err := s.db.Exec(ctx, queryDropSlot, name)
		return dropped.RowsAffected() == 1, err
	})
}

// fillDebezium creates the slot before it inserts rows, so that the connector reads all of them.
func (s *stack) fillDebezium(ctx context.Context, slot, topic string, n int, payload [][]byte) error {
	if err := s.exec(ctx, queryEmptyDebezium, queryCheckpoint); err != nil {
		return err
	}
	if _, err := s.db.Exec(ctx, queryDebeziumSlot, slot); err != nil {
		return err
	}
	columns := []string{"id", "aggregatetype", "aggregateid", "type", "payload"}
	for some := range slices.Chunk(events(topic, n, payload), 1000) {
		_, err := s.db.CopyFrom(ctx, pgx.Identifier{"debezium_outbox"}, columns,
			pgx.CopyFromSlice(len(some), func(i int) ([]any, error) {
				return []any{[16]byte(some[i].ID), topic, some[i].Key, some[i].Type, string(some[i].Payload)}, nil
			}))
		if err != nil {
			return err
		}
	}
	return nil
}

// follow polls a topic until it has n records, and returns the arrival of the first ones and of all.
func (s *stack) follow(ctx context.Context, c *kafkatest.Connect, name, topic string, n int) (first, last arrival,
	err error,
) {
	asked := time.Now()
	err = c.Await(ctx, func() (bool, error) {
		got, err := s.records(ctx, topic)
		if err != nil {
			return false, err
		}
		if got > 0 && first.records == 0 {
			first = s.arrivalOf(c, got)
		}
		if got >= n {
			last = s.arrivalOf(c, got)
			return true, nil
		}
		if time.Since(asked) < time.Second {
			return false, nil
		}
		asked = time.Now()
		return false, c.Failure(ctx, name)
	})
	return first, last, err
}

func (s *stack) arrivalOf(c *kafkatest.Connect, records int) arrival {
	at := time.Now()
	own, _ := cpuOf(c.PID())
	return arrival{at, records, own, serverCPU()}
}
