package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/effectonce/effectonce/internal/kafkaconn"
	"github.com/effectonce/effectonce/internal/secret"
	"github.com/effectonce/effectonce/internal/testenv/kafkatest"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// identity is an identity service that issues tokens to one client.
type identity struct {
	mu      sync.Mutex
	issue   func() string // makes a token
	ends    time.Duration
	secret  string
	granted int // for the scope doctor
}

// ServeHTTP implements http.Handler.
func (i *identity) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	id, password, _ := r.BasicAuth()
	switch {
	case r.FormValue("grant_type") != "client_credentials" || r.FormValue("audience") != "kafka":
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error": "invalid_request"}`)
	case id != "client" || password != i.secret:
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error": "invalid_client", "error_description": "no %s"}`, // with the secret
			password+r.FormValue("client_secret"))
	default:
		if r.FormValue("scope") == "doctor" {
			i.granted++
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"access_token": i.issue(), "token_type": "Bearer", "expires_in": int(i.ends.Seconds()),
		})
	}
}

func (i *identity) change(to func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	to()
}

// testClientCredentials: relay and consumer get their tokens from a token endpoint. When it refuses the client, both
// wait and report it; they continue with the next secret.
func testClientCredentials(t *testing.T, kafka *kafkatest.Secure, caFile string) {
	t.Parallel()
	const rotated = canary + "-rotated"
	tokens := &identity{ends: 3 * time.Second, secret: canary}
	tokens.issue = func() string { return kafka.Token(t, tokens.ends) }
	service := httptest.NewServer(tokens)
	t.Cleanup(service.Close)
	db, topic := outboxDB(t), kafkatest.TopicAt(t, kafka.Brokers(), 2)
	file := filepath.Join(t.TempDir(), "secret")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(canary)
	env := settings(db, kafka.SASL).with("RELAY_KAFKA_TLS", "true", "RELAY_KAFKA_CA_FILE", caFile, "RELAY_LOG_LEVEL",
		"debug", "RELAY_KAFKA_SASL", "oauthbearer", "RELAY_KAFKA_OAUTH_TOKEN_URL", service.URL,
		"RELAY_KAFKA_OAUTH_TOKEN_PARAMS", "audience=kafka", "RELAY_KAFKA_USERNAME", "client",
		"RELAY_KAFKA_PASSWORD_FILE", file)
	var said output
	relay := inProcess(t, env)
	h := consume(t, kafkaconn.Config{
		Brokers: []string{kafka.SASL}, TLS: true, CAFile: caFile, SASL: kafkaconn.OAuthBearer, Username: "client",
		Password: secret.InFile(file), TokenURL: service.URL, TokenParams: map[string]string{"audience": "kafka"},
	}, topic, slog.New(slog.NewTextHandler(&said, nil)))
	fill(t, db, topic, 100)
	awaitDrained(t, db)
	h.await(t, 100)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the relay:\n%s\nthe consumer:\n%s", relay.output(), said.String())
		}
	})
	// The service gets another secret, and the sessions end with their tokens.
	tokens.change(func() { tokens.secret, tokens.ends = rotated, time.Hour })
	const refused = `answers 401 \"invalid_client\"`
	pgtest.Await(t, "the end of their sessions", func() (bool, error) {
		db.Exec(t, `insert into outbox_event (topic, type) values ($1, 'T')`, topic)
		return strings.Contains(relay.output(), strings.ReplaceAll(refused, `\`, `\\\`)) ||
			strings.Contains(relay.output(), refused), nil
	})
	_, text, stderr := command(t, env, "doctor")
	if !strings.Contains(text, "look at --kafka-username and --kafka-password, which are the client's id and secret") {
		t.Errorf("doctor: %s%s", text, stderr)
	}
	write(rotated)
	awaitDrained(t, db)
	pgtest.Await(t, "the next events at the consumer", func() (bool, error) { return h.n.Load() > 100, nil })
	if n := pgtest.One[int](t, db,
		`select (select count(*) from outbox_parked) + (select count(*) from outbox_held)`); n != 0 {
		t.Errorf("%d events are parked or held", n)
	}
	// One token with a long lifetime serves all connections.
	_, text, _ = command(t, env.with("RELAY_KAFKA_OAUTH_TOKEN_PARAMS", "audience=kafka,scope=doctor"), "doctor")
	if strings.Contains(text, "fail  kafka") {
		t.Error(text)
	}
	tokens.change(func() {
		if tokens.granted != 1 {
			t.Errorf("doctor got %d tokens for its connections", tokens.granted)
		}
	})
	for _, all := range []string{relay.output(), said.String(), text, stderr} {
		if strings.Contains(all, canary) {
			t.Error("the client's secret is in the output")
		}
	}
}
