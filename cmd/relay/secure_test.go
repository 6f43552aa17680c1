package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/effectonce/effectonce/consumer"
	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/inbox"
	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// eventCounter is a handler that counts events.
type eventCounter struct {
	inbox.HandlerFunc // nil: its Handle is not used
	n                 atomic.Int64
}

// Handle implements inbox.Handler.
func (c *eventCounter) Handle(_ context.Context, events []event.Event) ([]inbox.Outcome, error) {
	c.n.Add(int64(len(events)))
	out := make([]inbox.Outcome, len(events))
	for i := range out {
		out[i] = inbox.Applied
	}
	return out, nil
}

// Window is longer than the retention of the topics.
func (*eventCounter) Window() time.Duration { return 30 * 24 * time.Hour }

// consume runs a consumer until the end of the test.
func consume(t *testing.T, cfg kafkaconn.Config, topic string, log *slog.Logger) *eventCounter {
	t.Helper()
	conn, err := cfg.New(kafkaTokens)
	if err != nil {
		t.Fatal(err)
	}
	return consumeAs(t, conn, conn.SASL(), topic, log)
}

// consumeAs is consume with a login of its own.
func consumeAs(t *testing.T, conn *kafkaconn.Conn, login sasl.Mechanism, topic string, log *slog.Logger) *eventCounter {
	t.Helper()
	h := &eventCounter{}
	c, err := consumer.New(h, conn.Brokers(), []string{topic}, consumer.Config{
		Group: topic, Dial: conn.Dial, SASL: login, Logger: log,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return h
}

func (c *eventCounter) await(t *testing.T, n int64) {
	t.Helper()
	pgtest.Await(t, "all events at the consumer", func() (bool, error) { return c.n.Load() >= n, nil })
}

// TestSecureKafka is one test, because the broker starts slowly.
func TestSecureKafka(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a broker")
	}
	t.Parallel()
	kafka := kafkatest.NewSecure(t)
	kafka.SetPassword(t, kafkatest.SecurePassword)
	caFile := kafka.CA.File(t)
	t.Run("ways in", func(t *testing.T) { testLogins(t, kafka, caFile) })
	// The broker has one certificate at a time.
	t.Run("certificates", func(t *testing.T) { testRefusedCertificates(t, kafka, caFile) })
}

func testLogins(t *testing.T, kafka *kafkatest.Secure, caFile string) {
	quiet := slog.New(slog.DiscardHandler)
	with := func(mechanism string, password secret.Value) kafkaconn.Config {
		return kafkaconn.Config{
			Brokers: []string{kafka.SASL}, TLS: true, CAFile: caFile, SASL: mechanism, Username: kafkatest.SecureUser,
			Password: password,
		}
	}
	for _, mechanism := range []string{kafkaconn.Plain, kafkaconn.ScramSHA256, kafkaconn.ScramSHA512} {
		t.Run(mechanism, func(t *testing.T) {
			t.Parallel()
			db := outboxDB(t)
			topic := kafkatest.TopicAt(t, kafka.Brokers(), 2)
			fill(t, db, topic, 100)
			inProcess(t, settings(db, kafka.SASL).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile,
				"RELAY_KAFKA_SASL", mechanism,
				"RELAY_KAFKA_USERNAME", kafkatest.SecureUser, "RELAY_KAFKA_PASSWORD", kafkatest.SecurePassword))
			awaitDrained(t, db)
			consume(t, with(mechanism, secret.Of(kafkatest.SecurePassword)), topic, quiet).await(t, 100)
		})
	}
	t.Run("least rights", func(t *testing.T) { testLeastRights(t, kafka, caFile) })
	t.Run("tokens", func(t *testing.T) { testTokens(t, kafka, caFile) })
	t.Run("client credentials", func(t *testing.T) { testClientCredentials(t, kafka, caFile) })
	t.Run("aws-msk-iam", func(t *testing.T) { testMSKIAM(t, kafka, caFile) })
	t.Run("client certificate", func(t *testing.T) {
		t.Parallel()
		db := outboxDB(t)
		topic := kafkatest.TopicAt(t, kafka.Brokers(), 2)
		fill(t, db, topic, 100)
		cert, key := kafka.CA.Issue(t, time.Now().Add(time.Hour))
		without := settings(db, kafka.MTLS).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile)
		env := without.with("RELAY_KAFKA_CERT_FILE", cert, "RELAY_KAFKA_KEY_FILE", key)
		inProcess(t, env)
		awaitDrained(t, db)
		consume(t, kafkaconn.Config{
			Brokers: []string{kafka.MTLS}, TLS: true, CAFile: caFile, CertFile: cert, KeyFile: key,
		}, topic, quiet).await(t, 100)
		if _, text, _ := command(t, env, "doctor"); !strings.Contains(text, "of cluster ") {
			t.Error(text)
		}
		code, text, _ := command(t, without, "doctor")
		if code != codeFindings || !strings.Contains(text, "fail  kafka ") {
			t.Errorf("no certificate, exit code %d: %s", code, text)
		}
	})
	t.Run("P4.unknown: a wrong password", func(t *testing.T) {
		t.Parallel()
		db := outboxDB(t)
		topic := kafkatest.TopicAt(t, kafka.Brokers(), 2)
		fill(t, db, topic, 100)
		password := filepath.Join(t.TempDir(), "password")
		write := func(content string) {
			if err := os.WriteFile(password, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write(canary)
		relay := inProcess(t, settings(db, kafka.SASL).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile,
			"RELAY_LOG_LEVEL", "debug",
			"RELAY_KAFKA_SASL", "scram-sha-256", "RELAY_KAFKA_USERNAME", kafkatest.SecureUser,
			"RELAY_KAFKA_PASSWORD_FILE", password))
		var said output
		h := consume(t, with(kafkaconn.ScramSHA256, secret.InFile(password)), topic,
			slog.New(slog.NewTextHandler(&said, nil)))
		pgtest.Await(t, "both report the wrong password", func() (bool, error) {
			const why = "SASL Authentication failed"
			return strings.Contains(strings.ToLower(relay.output()), strings.ToLower(why)) &&
				strings.Contains(strings.ToLower(said.String()), strings.ToLower(why)), nil
		})
		if n := pgtest.One[int](t, db, `select count(*) from outbox_event`); n != 100 {
			t.Errorf("%d events are left of 100", n)
		}
		_, page, err := relay.get("/metrics")
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(relay.output()+said.String()+page, canary) {
			t.Error("the password is in the output")
		}
		write(kafkatest.SecurePassword)
		awaitDrained(t, db)
		h.await(t, 100)
	})
	t.Run("doctor", func(t *testing.T) {
		t.Parallel()
		env := settings(outboxDB(t), kafka.SASL).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile,
			"RELAY_KAFKA_SASL", "scram-sha-512",
			"RELAY_KAFKA_USERNAME", kafkatest.SecureUser, "RELAY_KAFKA_PASSWORD", kafkatest.SecurePassword)
		if _, text, _ := command(t, env, "doctor"); !strings.Contains(text, "of cluster ") {
			t.Error(text)
		}
		code, text, stderr := command(t, env.with("RELAY_KAFKA_PASSWORD", canary), "doctor")
		if code != codeFindings || !strings.Contains(text, "fail  kafka ") || strings.Contains(text+stderr, canary) {
			t.Errorf("exit code %d: %s%s", code, text, stderr)
		}
	})
	t.Run("another authority", func(t *testing.T) {
		t.Parallel()
		db := outboxDB(t)
		fill(t, db, "payments", 1)
		relay := inProcess(t, settings(db, kafka.MTLS).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE",
			kafkatest.NewAuthority(t).File(t),
			"RELAY_DRAIN_TIMEOUT", "0"))
		pgtest.Await(t, "the wrong CA in the log", func() (bool, error) {
			return strings.Contains(relay.output(), "stands on another CA than those of --kafka-ca-file"), nil
		})
	})
}

// testRefusedCertificates: F20 of Kafka. Producer, consumer and admin client report what is wrong with the broker's
// certificate, no event is parked meanwhile, and all of them continue by themselves once the certificate is right.
func testRefusedCertificates(t *testing.T, kafka *kafkatest.Secure, caFile string) {
	db := outboxDB(t)
	topic := kafkatest.TopicAt(t, kafka.Brokers(), 2)
	env := settings(db, kafka.SASL).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile, "RELAY_KAFKA_SASL",
		"scram-sha-512",
		"RELAY_KAFKA_USERNAME", kafkatest.SecureUser, "RELAY_KAFKA_PASSWORD", kafkatest.SecurePassword)
	cfg := kafkaconn.Config{
		Brokers: []string{kafka.SASL}, TLS: true, CAFile: caFile, SASL: kafkaconn.ScramSHA512,
		Username: kafkatest.SecureUser, Password: secret.Of(kafkatest.SecurePassword),
	}
	// This relay has open connections while the certificate expires.
	fill(t, db, topic, 100)
	inProcess(t, env)
	awaitDrained(t, db)
	var outputs []func() string
	for name, c := range map[string]struct {
		until time.Time
		hosts []string
		want  string
	}{
		"expired": {time.Now().Add(-time.Minute), nil, "the broker's certificate has run out"},
		"another name": {time.Now().Add(time.Hour), []string{"kafka.example"}, "the broker's certificate is not for " +
			"127.0.0.1"},
	} {
		kafka.UseCertificate(t, kafka.CA, c.until, c.hosts...)
		if code, text, stderr := command(t, env, "doctor"); code != codeFindings || !strings.Contains(text, c.want) {
			t.Errorf("%s, doctor: exit code %d: %s%s", name, code, text, stderr)
		}
		own, topic := outboxDB(t), kafkatest.TopicAt(t, kafka.Brokers(), 2)
		fill(t, own, topic, 100)
		relay := inProcess(t, env.with("RELAY_DATABASE_URL", own.URL))
		var said output
		log := slog.New(slog.NewTextHandler(&said, nil))
		h := consume(t, cfg, topic, log)
		pgtest.Await(t, name+": reported by producer and consumer", func() (bool, error) {
			return strings.Contains(relay.output(), c.want) && strings.Contains(said.String(), c.want), nil
		})
		if n := pgtest.One[int](t, own, `select count(*) from outbox_event`); n != 100 {
			t.Errorf("%s: %d events are left of 100", name, n)
		}
		outputs = append(outputs, relay.output, said.String)
		kafka.UseCertificate(t, kafka.CA, time.Now().Add(time.Hour))
		awaitDrained(t, own)
		h.await(t, 100)
		if n := pgtest.One[int](t, own,
			`select (select count(*) from outbox_parked) + (select count(*) from outbox_held)`); n != 0 {
			t.Errorf("%s: %d events are parked or held", name, n)
		}
	}
	if code, text, _ := command(t, env.with("RELAY_KAFKA_TLS", "false", "RELAY_KAFKA_CA_FILE", ""),
		"doctor"); code != codeFindings || !strings.Contains(text, "fail  kafka ") {
		t.Errorf("no TLS: exit code %d: %s", code, text)
	}
	for _, said := range outputs {
		if strings.Contains(said(), kafkatest.SecurePassword) {
			t.Error("the password is in the output")
		}
	}
}

// testTokens: the broker validates signed tokens, and ends a session with its token. Relay and consumer continue with
// the next token; an expired one is refused with a clear error, and no event is parked.
func testTokens(t *testing.T, kafka *kafkatest.Secure, caFile string) {
	t.Parallel()
	db, topic := outboxDB(t), kafkatest.TopicAt(t, kafka.Brokers(), 2)
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file+".new", []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	env := settings(db, kafka.SASL).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile, "RELAY_LOG_LEVEL",
		"debug",
		"RELAY_KAFKA_SASL", "oauthbearer", "RELAY_KAFKA_PASSWORD_COMMAND", "cat "+file)
	cfg := kafkaconn.Config{
		Brokers: []string{kafka.SASL}, TLS: true, CAFile: caFile, SASL: kafkaconn.OAuthBearer,
		Password: secret.InFile(file),
	}
	renew := func() { write(kafka.Token(t, 3*time.Second)) }
	renew()
	var said output
	relay, h := inProcess(t, env), consume(t, cfg, topic, slog.New(slog.NewTextHandler(&said, nil)))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the relay:\n%s\nthe consumer:\n%s", relay.output(), said.String())
		}
	})
	fill(t, db, topic, 100)
	pgtest.Await(t, "all events at the consumer", func() (bool, error) {
		renew()
		return h.n.Load() >= 100, nil
	})
	awaitDrained(t, db)
	// The token expires, and the sessions end. The next token is signed by another key.
	good := kafka.Token(t, time.Hour)
	write(good[:strings.LastIndexByte(good, '.')] + ".bm90IHNpZ25lZA")
	pgtest.Await(t, "the end of their sessions", func() (bool, error) {
		db.Exec(t, `insert into outbox_event (topic, type) values ($1, 'T')`, topic)
		return strings.Contains(relay.output(), "trying again until it does") &&
			strings.Contains(said.String(), "trying again until it can"), nil
	})
	if code, text, _ := command(t, env, "doctor"); code != codeFindings ||
		!strings.Contains(text, "the broker refuses the token") {
		t.Errorf("doctor: exit code %d: %s", code, text)
	}
	write(good)
	awaitDrained(t, db)
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_parked) + (select count(*) from outbox_held)`); n != 0 {
		t.Errorf("%d events are parked or held", n)
	}
	pgtest.Await(t, "the last event at the consumer", func() (bool, error) { return h.n.Load() > 100, nil })
	if strings.Contains(relay.output()+said.String(), good) {
		t.Error("the token is in the output")
	}
}
