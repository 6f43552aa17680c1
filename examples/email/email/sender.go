package email

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/examples/worker"
)

// maxBackoff is the longest wait between two attempts.
const maxBackoff = 5 * time.Minute

// grace bounds the statements that run after ctx has ended.
const grace = 5 * time.Second

// sender sends the notifications. Several senders may share a table, in one process or in many.
type sender struct {
	cfg                             Config
	log                             *slog.Logger
	claimSQL, releaseSQL, recordSQL string
	woken                           chan struct{}
	databaseAway, providerAway      atomic.Bool
}

func newSender(cfg Config) (*sender, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	return &sender{
		cfg: cfg, log: log, claimSQL: worker.In(cfg.Schema, queryClaim),
		releaseSQL: worker.In(cfg.Schema, queryRelease),
		recordSQL:  worker.In(cfg.Schema, queryRecord), woken: make(chan struct{}, cfg.Senders),
	}, nil
}

// wake makes idle goroutines poll at once. It never blocks.
func (s *sender) wake() {
	for range cap(s.woken) {
		select {
		case s.woken <- struct{}{}:
		default:
			return
		}
	}
}

// run sends until ctx ends and the mails in flight are recorded. It also runs recovery of unknown outcomes.
func (s *sender) run(ctx context.Context, db *pgxpool.Pool) error {
	d, err := s.outbound(db)
	if err != nil {
		return fmt.Errorf("email: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = d.worker.Run(ctx) }) // always nil
	for range s.cfg.Senders {
		wg.Go(func() { s.loop(ctx, db) })
	}
	wg.Wait()
	return nil
}

func (s *sender) loop(ctx context.Context, db *pgxpool.Pool) {
	token, claimUnknown := uuid.New(), false
	for ctx.Err() == nil {
		claimed, err := s.sendOne(ctx, db, token, claimUnknown)
		claimUnknown = err != nil && !claimed
		if err != nil && ctx.Err() == nil && !s.databaseAway.Swap(true) {
			s.log.Warn("email: the database does not answer; waiting for it", "error", err)
		}
		if err == nil && s.databaseAway.Swap(false) {
			s.log.Info("email: the database answers again")
		}
		if claimed {
			token = uuid.New()
			continue
		}
		s.idle(ctx)
	}
}

func (s *sender) idle(ctx context.Context) {
	timer := time.NewTimer(s.cfg.PollEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.woken:
	case <-ctx.Done():
	}
}

// claim is a notification that this sender may send until its lease expires.
type claim struct {
	id        int64
	token     uuid.UUID
	message   Message
	attempts  int
	uncertain bool
	age       time.Duration
}

// sendOne claims a notification and sends it; claimed is false if none was due. claimUnknown says that the reply to an
// earlier claim with this token was lost. Nothing was sent for that claim, so it is released first.
func (s *sender) sendOne(ctx context.Context, db *pgxpool.Pool, token uuid.UUID, claimUnknown bool) (
	claimed bool, err error,
) {
	// The end of ctx does not cancel the claim: a claim with a lost reply looks like an attempt with an unknown
	// outcome.
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if claimUnknown {
		if _, err := db.Exec(short, s.releaseSQL, token.String()); err != nil {
			return false, fmt.Errorf("releasing a claim: %w", err)
		}
	}
	c := claim{token: token, message: Message{From: s.cfg.From}}
	var age float64
	err = db.QueryRow(short, s.claimSQL, token.String(), s.cfg.Lease.Microseconds()).Scan(&c.id, &c.message.ID,
		&c.message.To,
		&c.message.Subject, &c.message.Body, &c.message.Date, &c.attempts, &c.uncertain, &age)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("claiming: %w", err)
	}
	c.age = time.Duration(age * float64(time.Second))
	// From here on the mail is sent and recorded even if ctx ends.
	d, err := s.outbound(db)
	if err != nil {
		return true, s.record(ctx, db, c, result{
			status: "pending", uncertain: c.uncertain, err: err,
			wait: s.backoff(c.attempts),
		})
	}
	return true, s.record(ctx, db, c, d.process(context.WithoutCancel(ctx), c))
}

// result is the outcome of an attempt, as it is recorded.
type result struct {
	status, outcome string
	uncertain       bool
	err             error
	wait            time.Duration
}

func (s *sender) backoff(attempts int) time.Duration {
	d := maxBackoff
	if shift := max(0, attempts-1); shift < 20 {
		d = min(d, s.cfg.Backoff<<shift)
	}
	return d - time.Duration(rand.Int64N(int64(d)/4+1))
}

// record records the result. It retries while the lease lasts, because recovery has to resolve an attempt without a
// record. When stopping ends, it goes on for grace.
func (s *sender) record(stopping context.Context, db *pgxpool.Pool, c claim, r result) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(stopping), s.cfg.Lease-s.cfg.SendTimeout)
	defer cancel()
	defer context.AfterFunc(stopping, func() {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-ctx.Done():
		}
	})()
	if r.status == "unknown" || r.status == "failed" {
		s.log.Error("email: a notification needs an operator", "id", c.id, "status", r.status, "attempts", c.attempts,
			"error", r.err)
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		tag, err := db.Exec(ctx, s.recordSQL, c.id, c.token.String(), r.status, r.uncertain, r.outcome, r.errorText(),
			r.wait.Microseconds())
		if err == nil {
			if tag.RowsAffected() == 0 {
				s.log.Warn("email: the lease of a notification has expired; another sender resolves it", "id", c.id)
			}
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("recording %q of notification %d: %w", r.status, c.id, err)
		}
	}
}

// errorText is the error as text that Postgres accepts. A server's reply may contain any bytes.
func (r result) errorText() string {
	if r.err == nil {
		return ""
	}
	text := r.err.Error()
	return strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), 1000)], "\x00", ""), "?")
}

// logProviderState logs when the provider stops or starts answering, and what becomes of the mail.
func (s *sender) logProviderState(err error) {
	away := err != nil && !isRefused(err)
	if s.providerAway.Swap(away) == away {
		return
	}
	text := "email: a mail was not accepted; retrying until it is accepted or too old"
	switch {
	case !away:
		s.log.Info("email: the provider answers again")
		return
	case !isUnknown(err):
	case s.cfg.Lookup != nil:
		text = "email: a mail may have been accepted; the provider is asked before it is sent again"
	case s.cfg.OnUnknown == Resend:
		text = "email: a mail may have been accepted; it is sent again all the same"
	default:
		text = "email: a mail may have been accepted; it is held for an operator"
	}
	s.log.Warn(text, "error", err)
}
