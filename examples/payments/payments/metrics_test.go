package payments

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/effectonce/effectonce/examples/payments/figures"
	keystore "github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
)

// TestDurationOfTheDashboard: the p99 that the dashboard computes of the program's buckets is near the truth. It lies
// between the mean of all but the longest hundredth and the longest of the requests, as their client has measured it.
func TestDurationOfTheDashboard(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Schema: db.Schema, Listener: listener, Logger: slog.New(slog.DiscardHandler)}
	if cfg.Telemetry, cfg.Metrics, err = figures.Prometheus(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, db.Pool, cfg) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	send := func(method, path, key string) (status int, text string) {
		t.Helper()
		const body = `{"account_id":"acc-1","amount":100,"currency":"EUR"}`
		r, err := http.NewRequestWithContext(ctx, method, "http://"+listener.Addr().String()+path,
			strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(HeaderKey, key)
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	pgtest.Await(t, "the server to be ready", func() (bool, error) {
		status, _ := send(http.MethodGet, "/readyz", "")
		return status == http.StatusOK, nil
	})
	const n = 200
	var all float64
	var each []float64
	for i := range n {
		began := time.Now()
		if status, text := send(http.MethodPost, "/payments", strconv.Itoa(i)); status != http.StatusCreated {
			t.Fatalf("payment %d: %d %s", i, status, text)
		}
		took := time.Since(began).Seconds()
		all, each = all+took, append(each, took)
	}
	_, text := send(http.MethodGet, "/metrics", "")
	const name = "idempotency_duration_seconds"
	count, sum := value(t, text, name+"_count"), value(t, text, name+"_sum")
	if count != n || sum <= 0 || sum > all {
		t.Errorf("%v durations of %v s together; %d requests took %v s", count, sum, n, all)
	}
	slices.Sort(each)
	least, most := sum, each[n-1]
	for _, took := range each[n-n/100:] {
		least -= took
	}
	// A bucket's end is at most 2.5 times its begin, from 1 ms to 10 s.
	const width, first = 2.5, 0.001
	if p99 := quantile(t, text, 0.99); p99 > width*max(most, first) || p99 < least/n/width {
		t.Errorf("the dashboard shows a p99 of %v s; it is between %v s and %v s", p99, least/n, most)
	}
}

// quantile is histogram_quantile of Prometheus over the buckets of the duration.
func quantile(t *testing.T, text string, q float64) float64 {
	t.Helper()
	type bucket struct{ le, count float64 }
	var buckets []bucket
	bounds := regexp.MustCompile(`(?m)^idempotency_duration_seconds_bucket\{.*le="([^"]+)".*\} (\S+)$`)
	for _, m := range bounds.FindAllStringSubmatch(text, -1) {
		le, err1 := strconv.ParseFloat(m[1], 64)
		count, err2 := strconv.ParseFloat(m[2], 64)
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		buckets = append(buckets, bucket{le, count})
	}
	if len(buckets) < 3 {
		t.Fatalf("%d buckets in\n%s", len(buckets), text)
	}
	slices.SortFunc(buckets, func(a, b bucket) int {
		if a.le < b.le {
			return -1
		}
		return 1
	})
	rank := q * buckets[len(buckets)-1].count
	i := slices.IndexFunc(buckets, func(b bucket) bool { return b.count >= rank })
	if i == len(buckets)-1 {
		return buckets[i-1].le
	}
	var from, below float64
	if i > 0 {
		from, below = buckets[i-1].le, buckets[i-1].count
	}
	return from + (buckets[i].le-from)*(rank-below)/(buckets[i].count-below)
}

func value(t *testing.T, text, name string) float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^`+name+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(text, -1)
	if len(m) != 1 {
		t.Fatalf("%d values of %s in\n%s", len(m), name, text)
	}
	v, err := strconv.ParseFloat(m[0][1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

type noKeys struct{}

func (noKeys) Stats(context.Context) (keystore.Stats, error) { return keystore.Stats{}, nil }

// TestNamesOfTheDashboard: after each of the observers' calls, the real SDK and exporter show each metric and label of
// the edge that the dashboard and the alerts ask for.
func TestNamesOfTheDashboard(t *testing.T) {
	t.Parallel()
	m, handler, err := figures.Prometheus()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Watch(noKeys{}); err != nil {
		t.Fatal(err)
	}
	for _, observer := range []any{m.Guard(), m.Recovery()} {
		for _, call := range reflect.ValueOf(observer).Fields() {
			info := reflect.New(call.Type().In(0)).Elem()
			if info.Kind() == reflect.Struct {
				if first := info.FieldByName("New"); first.IsValid() {
					first.SetBool(true)
				}
				for _, field := range info.Fields() {
					if field.Kind() == reflect.Int {
						field.SetInt(1)
					}
				}
			}
			call.Call([]reflect.Value{info})
		}
	}
	scrape := httptest.NewRecorder()
	handler.ServeHTTP(scrape, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text, asked := scrape.Body.String(), 0
	for _, file := range []string{"grafana/effectonce.json", "prometheus/alerts.yml", "prometheus/idempotency.yml"} {
		queries, err := os.ReadFile("../../../deploy/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\bidempotency_[a-z_]+`).FindAllString(string(queries), -1) {
			asked++
			if !regexp.MustCompile(`(?m)^` + name + `[ {]`).MatchString(text) {
				t.Errorf("%s asks for %s, which is not there", file, name)
			}
		}
		for _, by := range regexp.MustCompile(`by \(([a-z, ]+)\) \((?:rate|increase)\((idempotency_[a-z_]+)`).
			FindAllStringSubmatch(string(queries), -1) {
			for label := range strings.SplitSeq(by[1], ", ") {
				if label != "job" && !regexp.MustCompile(`(?m)^`+by[2]+`\{.*\b`+label+`=`).MatchString(text) {
					t.Errorf("%s asks for %s by %s, which it has not", file, by[2], label)
				}
			}
		}
	}
	if asked < 20 {
		t.Errorf("dashboard and alerts ask for %d metrics of the edge", asked)
	}
	if t.Failed() {
		fmt.Fprintln(t.Output(), text)
	}
}
