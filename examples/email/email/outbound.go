package email

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/idempotency/recovery"
	"github.com/effectonce/effectonce/idempotency/store"
	"github.com/effectonce/effectonce/outcome"
)

const (
	operation = "email.receipt" // its key is the Message-ID
	stepSend  = "send"
)

// outbound sends mails through the guard, which commits the intent before and the outcome after each call. Recovery
// resolves unknown outcomes.
type outbound struct {
	sender *sender
	guard  *guard.Guard
	worker *recovery.Worker
}

func (s *sender) outbound(db *pgxpool.Pool) (*outbound, error) {
	store, err := pgstore.New(db, pgstore.Config{Schema: s.cfg.Schema})
	if err != nil {
		return nil, err
	}
	d := &outbound{sender: s}
	keep := idempotency.Retention{Body: -1, Tombstone: -1}
	if s.cfg.GiveUpAfter >= 0 {
		keep.Tombstone = s.cfg.GiveUpAfter + 24*time.Hour // for as long as the row may be sent
	}
	// Without a Lookup there is nothing to wait for: recovery asks nobody.
	settled := time.Duration(-1)
	if s.cfg.Lookup != nil {
		settled = s.cfg.Settled
	}
	cfg := guard.Config{Lease: s.cfg.SendTimeout, Keep: keep, RecordTimeout: grace, RecoverAfter: settled}
	if s.cfg.OnUnknown == Resend && s.cfg.Lookup == nil {
		cfg.Rerun = []string{operation}
	}
	if d.guard, err = guard.New(store, cfg); err != nil {
		return nil, err
	}
	h := recovery.Handler{
		Rerun: true, // nothing is done before the recorded call
		Resume: func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
			var m Message
			if err := json.Unmarshal(op.Record().Input, &m); err != nil {
				return idempotency.Result{}, fmt.Errorf("%w: its input is not a mail: %w", guard.ErrStuck, err)
			}
			return d.send(m)(ctx, op)
		},
		IdempotentProvider: s.cfg.OnUnknown == Resend,
	}
	if s.cfg.Lookup != nil {
		h.Probe = d.probe
	}
	d.worker, err = recovery.New(store, map[string]recovery.Handler{operation: h}, recovery.Config{
		Lease: s.cfg.SendTimeout, Timeout: s.cfg.SendTimeout, Grace: settled, Backoff: s.cfg.Backoff,
		MaxAttempts: -1, SkipUnhandled: true, Logger: s.log,
	})
	return d, err
}

// request is the guard's request for a mail. The fingerprint leaves out From, which the configuration may change.
func request(m Message) (idempotency.Request, error) {
	input, err := json.Marshal(m)
	if err != nil {
		return idempotency.Request{}, err
	}
	m.From = ""
	canonical, err := json.Marshal(m)
	return idempotency.Request{
		Key:         idempotency.Key{Operation: operation, Value: m.ID},
		Fingerprint: idempotency.Fingerprint{Version: 1, Sum: sha256.Sum256(canonical)},
		Input:       input,
	}, err
}

// send returns the operation of one mail: one call, whose downstream key is the Message-ID.
func (d *outbound) send(m Message) func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
	return func(ctx context.Context, op *guard.Op) (idempotency.Result, error) {
		outcome, err := op.CallAs(ctx, stepSend, m.ID, func(ctx context.Context, _ guard.Call) ([]byte, error) {
			err := d.sender.cfg.Provider.Send(ctx, m)
			d.sender.logProviderState(err)
			switch {
			case isRefused(err):
				return nil, outcome.Terminal("refused", err)
			case isUnknown(err):
				return nil, outcome.Unknown(err)
			}
			return []byte("accepted"), outcome.Retryable(err)
		})
		if err != nil {
			return idempotency.Result{Body: []byte(err.Error())}, err
		}
		return idempotency.Result{Body: outcome}, nil
	}
}

// probe asks the provider whether it has accepted the mail.
func (d *outbound) probe(ctx context.Context, q recovery.ProbeRequest) (recovery.ProbeResult, error) {
	accepted, err := d.sender.cfg.Lookup(ctx, q.Key)
	switch {
	case err != nil:
		return recovery.ProbeResult{}, fmt.Errorf("asking the provider: %w", err)
	case accepted:
		return recovery.ProbeResult{Outcome: recovery.Happened, Data: []byte("found")}, nil
	}
	return recovery.ProbeResult{Outcome: recovery.NotHappened}, nil
}

// process sends a claimed notification, after recovery has resolved an earlier attempt.
func (d *outbound) process(ctx context.Context, c claim) result {
	s := d.sender
	ctx, cancel := context.WithTimeout(ctx, s.cfg.SendTimeout)
	defer cancel()
	retry := result{status: "pending", uncertain: true, wait: s.backoff(c.attempts)}
	if c.uncertain {
		// Recovery in the background may not have reached this key yet.
		if _, err := d.worker.Once(ctx); err != nil {
			retry.err = err
			return retry
		}
	}
	r, err := request(c.message)
	if err != nil {
		return result{status: "failed", outcome: "refused", err: err}
	}
	res, err := d.guard.Run(ctx, r, d.send(c.message))
	var unknown *idempotency.UnknownError
	unresolvable := errors.As(err, &unknown) && (unknown.Stuck || s.cfg.Lookup == nil && s.cfg.OnUnknown == Hold)
	retry.err = err
	switch {
	case (err == nil || errors.Is(err, guard.ErrUnrecorded)) && res.Failure == "":
		return result{status: "sent", outcome: string(res.Body)}
	case err == nil:
		return result{status: "failed", outcome: "refused", err: errors.New(string(res.Body))}
	case unresolvable || errors.Is(err, idempotency.ErrMismatch) || errors.Is(err, idempotency.ErrExpired):
		return result{status: "unknown", outcome: "unknown", err: err}
	case errors.Is(err, idempotency.ErrUnknown) || errors.Is(err, idempotency.ErrInProgress) ||
		errors.Is(err, store.ErrLeaseLost):
		return retry
	case s.cfg.GiveUpAfter >= 0 && c.age > s.cfg.GiveUpAfter:
		return result{status: "failed", outcome: "gave up", err: err}
	}
	retry.uncertain = c.uncertain
	return retry
}
