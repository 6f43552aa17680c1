package recovery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/internal/testenv/dynamotest"
	"github.com/effectonce/effectonce/internal/testenv/fakeprovider"
	"github.com/effectonce/effectonce/internal/testenv/pgtest"
	"github.com/effectonce/effectonce/internal/testenv/redistest"
)

// With these set, the test binary makes a payment and kills itself.
const (
	envPoint    = "RECOVERY_POINT"
	envURL      = "RECOVERY_URL"
	envProvider = "RECOVERY_PROVIDER"
)

func TestMain(m *testing.M) {
	if os.Getenv(envPoint) != "" {
		if err := runPayment(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	pgtest.Main(m, redistest.Stop, dynamotest.Stop)
}

// killer kills this process with SIGKILL at a step.
type killer struct{ at, steps int }

func (k *killer) step() {
	if k.steps++; k.steps == k.at {
		self, _ := os.FindProcess(os.Getpid()) // on Windows, too, for which this is vetted
		_ = self.Kill()
		select {}
	}
}

// killingStore is a store whose process is killed before or after a write.
type killingStore struct {
	store.Recoverable
	k *killer
}

func (d *killingStore) Claim(ctx context.Context, r idempotency.Request, opt store.ClaimOptions) (store.ClaimResult,
	error,
) {
	d.k.step()
	defer d.k.step()
	return d.Recoverable.Claim(ctx, r, opt)
}

func (d *killingStore) Save(ctx context.Context, l store.Lease, p store.Progress) error {
	d.k.step()
	defer d.k.step()
	return d.Recoverable.Save(ctx, l, p)
}

func (d *killingStore) Finish(ctx context.Context, l store.Lease, res idempotency.Result,
	keep idempotency.Retention,
) error {
	d.k.step()
	defer d.k.step()
	return d.Recoverable.Finish(ctx, l, res, keep)
}

// runPayment makes a payment with a provider over HTTP.
func runPayment() error {
	point, err := strconv.Atoi(os.Getenv(envPoint))
	if err != nil {
		return err
	}
	ctx, k := context.Background(), &killer{at: point}
	db, err := pgxpool.New(ctx, os.Getenv(envURL))
	if err != nil {
		return err
	}
	defer db.Close()
	store, err := pgstore.New(db, pgstore.Config{})
	if err != nil {
		return err
	}
	g, err := guard.New(&killingStore{store, k}, guard.Config{Lease: time.Minute})
	if err != nil {
		return err
	}
	_, err = g.Run(ctx, request(), payOver(os.Getenv(envProvider), k.step))
	return err
}

// payOver charges and mails over HTTP; it calls reach before and after each request.
func payOver(base string, reach func()) func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	call := func(what string) func(ctx context.Context, c guard.Call) ([]byte, error) {
		return func(ctx context.Context, c guard.Call) ([]byte, error) {
			reach()
			defer reach()
			var id string
			err := get(ctx, base+"/do?what="+what+"&key="+url.QueryEscape(c.Key), &id)
			return []byte(id), err
		}
	}
	return func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		card, err := op.Call(ctx, "charge", call("charge"))
		if err != nil {
			return idempotency.Result{}, err
		}
		mail, err := op.Call(ctx, "mail", call("mail"))
		return idempotency.Result{Code: 201, Body: fmt.Appendf(nil, "%s %s", card, mail)}, err
	}
}

var errNotFound = errors.New("404")

func get(ctx context.Context, url string, to any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNotFound {
		return errNotFound
	}
	return json.NewDecoder(res.Body).Decode(to)
}

// serve returns the HTTP handler of a provider.
func serve(p *fakeprovider.Provider) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/do", func(w http.ResponseWriter, r *http.Request) {
		id, err := p.Do(r.Context(), r.FormValue("key"), r.FormValue("what"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(id)
	})
	mux.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) {
		e, ok := p.Ask(r.FormValue("key"))
		if !ok {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(e.ID)
	})
	return mux
}

// TestRecovery_KilledAtEveryPoint: over Postgres, a paying process is killed with SIGKILL before and after each write
// and each request to a provider without idempotency. Recovery asks the provider, and there is one charge and one mail.
func TestRecovery_KilledAtEveryPoint(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for point, killed := 1, true; killed; point++ {
		db, p := pgtest.New(t, "idempotency"), &fakeprovider.Provider{Forgetful: true}
		bank := httptest.NewServer(serve(p))
		cmd := exec.CommandContext(t.Context(), self)
		cmd.Env = append(os.Environ(), envPoint+"="+strconv.Itoa(point), envURL+"="+db.URL, envProvider+"="+bank.URL)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		killed = errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
		if err != nil && !killed {
			t.Fatalf("point %d: %v: %s", point, err, out)
		}
		if !killed && point < 15 {
			t.Errorf("only %d points", point-1)
		}
		recoverAndRetry(t, db, bank.URL)
		bank.Close()
		var charges, mails int
		for _, e := range p.Effects() {
			switch e.What {
			case "charge":
				charges++
			case "mail":
				mails++
			}
		}
		if charges != 1 || mails != 1 {
			t.Errorf("point %d: %d charges, %d mails", point, charges, mails)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// recoverAndRetry recovers the operation, and retries it as its caller.
func recoverAndRetry(t *testing.T, db *pgtest.DB, bank string) {
	t.Helper()
	store, err := pgstore.New(db.Pool, pgstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	work := payOver(bank, func() {})
	worker, err := recovery.New(store, map[string]recovery.Handler{operation: {
		Rerun: true, Resume: work,
		Probe: func(ctx context.Context, q recovery.ProbeRequest) (a recovery.ProbeResult, err error) {
			var id string
			switch err := get(ctx, bank+"/ask?key="+url.QueryEscape(q.Key), &id); {
			case errors.Is(err, errNotFound):
				return recovery.ProbeResult{Outcome: recovery.NotHappened}, nil
			case err != nil:
				return recovery.ProbeResult{}, err
			}
			return recovery.ProbeResult{Outcome: recovery.Happened, Data: []byte(id)}, nil
		},
	}}, recovery.Config{Grace: -1})
	if err != nil {
		t.Fatal(err)
	}
	g, err := guard.New(store, guard.Config{})
	if err != nil {
		t.Fatal(err)
	}
	// As if the crashed process's lease had ended.
	db.Exec(t, "update idempotency_key set lease_until = clock_timestamp(), due_at = clock_timestamp() where state = "+
		"'IN_PROGRESS'")
	pgtest.Await(t, "the payment is done", func() (bool, error) {
		if _, err := worker.Once(t.Context()); err != nil {
			return false, err
		}
		stats, err := store.Stats(t.Context())
		return stats.InProgress+stats.Unknown == 0, err
	})
	first, err := g.Run(t.Context(), request(), work)
	if err != nil {
		t.Fatal(err)
	}
	again, err := g.Run(t.Context(), request(), work)
	if err != nil || !again.Replayed || string(again.Body) != string(first.Body) || again.Code != 201 {
		t.Errorf("%+v, then %+v, %v", first, again, err)
	}
}
