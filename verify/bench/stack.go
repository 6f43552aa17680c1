package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"

	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/migrations"
	"github.com/effectonce/effectonce/verify/bench/plan"
)

// partitions is the number of partitions of every topic.
const partitions = 8

// postgresSettings are production settings as far as they matter to a short run; fsync and full_page_writes are on. The
// large WAL keeps checkpoints out of the measurements.
var postgresSettings = []string{"shared_buffers=512MB", "max_wal_size=8GB", "checkpoint_timeout=30min"}

// stack is the servers of a run with their clients.
type stack struct {
	pg      *pgtest.Server
	db      *pgxpool.Pool
	brokers []string
	libs    string // Kafka's jars
	kafka   *kafka.Client
	dir     string
	costs   *plan.Costs // of the costs case of this run, if it has run
}

// start starts Postgres and Kafka.
func start(ctx context.Context) (s *stack, err error) {
	s = &stack{}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := s.startKafka(); err != nil {
		return s, err
	}
	if s.pg, err = pgtest.Standalone(postgresSettings...); err != nil {
		return s, err
	}
	if s.dir, err = os.MkdirTemp("", "effectonce-bench-"); err != nil {
		return s, err
	}
	conn, err := pgx.ParseConfig(s.pg.URL())
	if err != nil {
		return s, err
	}
	if err := migrations.Up(ctx, conn, migrations.Options{Schema: "public"}); err != nil {
		return s, err
	}
	cfg, err := pgxpool.ParseConfig(s.pg.URL())
	if err != nil {
		return s, err
	}
	cfg.MaxConns = 40
	s.db, err = pgxpool.NewWithConfig(ctx, cfg)
	return s, err
}

func (s *stack) startKafka() (err error) {
	if s.libs, err = kafkatest.Libs(); err != nil {
		return err
	}
	var fake bool
	if s.brokers, fake, err = kafkatest.Shared(); err != nil {
		return err
	}
	if fake {
		return errors.New("the benchmark needs a real Kafka: install Java 17 and Maven")
	}
	s.kafka = &kafka.Client{Addr: kafka.TCP(s.brokers...), Timeout: time.Minute}
	return nil
}

func (s *stack) close() {
	if s.db != nil {
		s.db.Close()
	}
	if s.pg != nil {
		s.pg.Close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
	kafkatest.Stop()
}

// topic creates a topic for one measurement; drop deletes it, because old data would cost later ones memory.
func (s *stack) topic(ctx context.Context, settings ...kafka.ConfigEntry) (name string, drop func(), err error) {
	var random [4]byte
	_, _ = rand.Read(random[:]) // never fails since Go 1.24
	name = "bench-" + hex.EncodeToString(random[:])
	ask := &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{
		Topic: name, NumPartitions: partitions, ReplicationFactor: 1,
		ConfigEntries: append(settings, kafka.ConfigEntry{ConfigName: "file.delete.delay.ms", ConfigValue: "1000"}),
	}}}
	for range 60 {
		res, err := s.kafka.CreateTopics(ctx, ask)
		if err == nil {
			err = res.Errors[name]
		}
		switch {
		case err == nil, errors.Is(err, kafka.TopicAlreadyExists): // unique: the reply to an earlier attempt was lost
			old := &kafka.DeleteTopicsRequest{Topics: []string{name}}
			return name, func() { _, _ = s.kafka.DeleteTopics(context.WithoutCancel(ctx), old) }, nil
		case !errors.Is(err, kafka.InvalidReplicationFactor): // the broker is alive, though a busy machine may delay it
			return "", nil, fmt.Errorf("make topic %s: %w", name, err)
		}
		if err := pause(ctx, time.Second); err != nil {
			return "", nil, err
		}
	}
	return "", nil, fmt.Errorf("make topic %s: there is no broker", name)
}

// about describes the environment.
func (s *stack) about(ctx context.Context) (map[string]string, error) {
	a := map[string]string{
		"date": time.Now().UTC().Format("2006-01-02 15:04 UTC"), "go": runtime.Version(),
		"cores": fmt.Sprint(runtime.NumCPU()),
		"load":  load(),
		"kafka": fmt.Sprintf("one broker, %s, heap of 512 MB, %d partitions", s.kafkaVersion(), partitions),
	}
	var version string
	err := s.db.QueryRow(ctx, queryPostgres).Scan(&version)
	a["postgres"] = version
	return a, err
}

func (s *stack) kafkaVersion() string {
	jars, _ := filepath.Glob(filepath.Join(s.libs, "kafka-clients-*.jar"))
	if len(jars) == 0 {
		return "unknown"
	}
	return strings.TrimSuffix(strings.TrimPrefix(filepath.Base(jars[0]), "kafka-clients-"), ".jar")
}

// load returns the load of the machine, which distorts the figures.
func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}
