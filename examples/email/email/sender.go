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

	"github.com/effectonce/effectonce/internal/pgschema"
)

// maxBackoff is the longest wait between two attempts.
const maxBackoff = 5 * time.Minute

// grace bounds what is still done for the database after the end.
const grace = 5 * time.Second

// sender drains email_notification. Several may work on one table, in one process or many.
type sender struct {
	cfg                    Config
	log                    *slog.Logger
	claimQ, unclaim, recQ  string
	woken                  chan struct{}
	databaseAway, smtpAway atomic.Bool
}

func newSender(cfg Config) (*sender, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	prefix, err := pgschema.Prefix(cfg.Schema)
	if err != nil {
		return nil, fmt.Errorf("email: %w", err)
	}
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	return &sender{
		cfg: cfg, log: log, claimQ: pgschema.Expand(queryClaim, prefix), unclaim: pgschema.Expand(queryUnclaim, prefix),
		recQ: pgschema.Expand(queryRecord, prefix), woken: make(chan struct{}, cfg.Senders),
	}, nil
}

// wake makes every idle sender look at once. It never blocks.
func (s *sender) wake() {
	for range cap(s.woken) {
		select {
		case s.woken <- struct{}{}:
		default:
			return
		}
	}
}

// run sends until ctx ends and the mails that are under way are recorded. Beside, it finds out about mails of which
// nobody knows.
func (s *sender) run(ctx context.Context, db *pgxpool.Pool) error {
	d, err := s.outbound(db)
	if err != nil {
		return fmt.Errorf("email: %w", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _ = d.worker.Run(ctx) }) // nil, whatever happens
	for range s.cfg.Senders {
		wg.Go(func() { s.loop(ctx, db) })
	}
	wg.Wait()
	return nil
}

func (s *sender) loop(ctx context.Context, db *pgxpool.Pool) {
	token, lost := uuid.New(), false
	for ctx.Err() == nil {
		busy, err := s.once(ctx, db, token, lost)
		lost = err != nil && !busy
		if err != nil && ctx.Err() == nil && !s.databaseAway.Swap(true) {
			s.log.Warn("email: the database does not answer; waiting for it", "error", err)
		}
		if err == nil && s.databaseAway.Swap(false) {
			s.log.Info("email: the database answers again")
		}
		if busy {
			token = uuid.New()
			continue
		}
		s.rest(ctx)
	}
}

func (s *sender) rest(ctx context.Context) {
	timer := time.NewTimer(s.cfg.PollEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.woken:
	case <-ctx.Done():
	}
}

// claim is one notification that this sender may send until its lease ends.
type claim struct {
	id        int64
	token     uuid.UUID
	message   Message
	attempts  int
	uncertain bool
	age       time.Duration
}

// once claims one notification and deals with it. busy is false when nothing was due. token names the claim; lost says
// that the answer to an earlier claim under it was lost: that one, which has sent nothing, is given back first.
func (s *sender) once(ctx context.Context, db *pgxpool.Pool, token uuid.UUID, lost bool) (busy bool, err error) {
	// Not cut by the end of ctx: a claim that nobody knows of would look like an attempt that nobody knows of.
	short, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if lost {
		if _, err := db.Exec(short, s.unclaim, token.String()); err != nil {
			return false, fmt.Errorf("giving back a claim: %w", err)
		}
	}
	c := claim{token: token, message: Message{From: s.cfg.From}}
	var age float64
	err = db.QueryRow(short, s.claimQ, token.String(), s.cfg.Lease.Microseconds()).Scan(&c.id, &c.message.ID,
		&c.message.To,
		&c.message.Subject, &c.message.Body, &c.message.Date, &c.attempts, &c.uncertain, &age)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("claiming: %w", err)
	}
	c.age = time.Duration(age * float64(time.Second))
	// From here on the end of ctx only means "no more": a mail that is under way is finished and recorded.
	d, err := s.outbound(db)
	if err != nil {
		return true, s.record(ctx, db, c, result{
			status: "pending", uncertain: c.uncertain, err: err,
			wait: s.backoff(c.attempts),
		})
	}
	return true, s.record(ctx, db, c, d.deal(context.WithoutCancel(ctx), c))
}

// result is what became of an attempt, as it is recorded.
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

// record writes down what became of an attempt, again and again while its lease lasts: what is not written down has to
// be found out. After the end of stopping it tries a little longer.
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
		s.log.Error("email: a notification needs a person", "id", c.id, "status", r.status, "attempts", c.attempts,
			"error", r.err)
	}
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		tag, err := db.Exec(ctx, s.recQ, c.id, c.token.String(), r.status, r.uncertain, r.outcome, r.reason(),
			r.wait.Microseconds())
		if err == nil {
			if tag.RowsAffected() == 0 {
				s.log.Warn("email: the lease of a notification was lost; another sender finds out about it", "id", c.id)
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

// reason is the error as a text that Postgres takes: a server's answer may be any bytes.
func (r result) reason() string {
	if r.err == nil {
		return ""
	}
	text := r.err.Error()
	return strings.ToValidUTF8(strings.ReplaceAll(text[:min(len(text), 1000)], "\x00", ""), "?")
}

// noteProvider says once that the provider is away, and once that it is back.
func (s *sender) noteProvider(err error) {
	away := err != nil && !isRefused(err)
	if s.smtpAway.Swap(away) == away {
		return
	}
	if away {
		s.log.Warn("email: a mail was not accepted and is tried again", "error", err)
		return
	}
	s.log.Info("email: mail is accepted again")
}
