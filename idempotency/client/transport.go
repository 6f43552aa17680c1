package client

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/google/uuid"

	"github.com/effectonce/effectonce/internal/sleep"
)

// HeaderKey carries the key of an intent.
const HeaderKey = "Idempotency-Key"

// headerReplayed is in the answer to a retry that the service has answered before.
const headerReplayed = "Idempotent-Replayed"

// NewKey makes the key of a new intent: a random UUID.
func NewKey() string { return uuid.NewString() }

// Config sets a Transport. The zero value is safe.
type Config struct {
	// Base makes the single attempts. Default http.DefaultTransport.
	Base http.RoundTripper
	// Methods get a key and are repeated; others pass to Base once. Default POST and PATCH. A request that has a key of
	// its own is always repeated.
	Methods []string
	// Attempts is how often an intent is tried at most. Default 8; negative: until its context ends.
	Attempts int
	// Attempt is how long one attempt waits for the head of an answer. Default 10 s; negative: as long as the context
	// allows. Too short, and the server's work is asked for again and again while it goes on.
	Attempt time.Duration
	// First and Most are the shortest and the longest pause between two attempts; each is half to one and a half times
	// as long, by chance. Default 200 ms and 20 s.
	First, Most time.Duration
	// Patience is the longest Retry-After that is waited for; an answer that says more is returned at once. Default 1
	// min; negative: any.
	Patience time.Duration
	// MaxBody is how much of a request's body is kept for the next attempt, when the request cannot give it again
	// itself (GetBody). A larger one is an error, before anything is sent. Default 1 MiB; negative: any.
	MaxBody int64
	// NewKey makes the key of a request that has none. Default the function NewKey.
	NewKey func() string
}

// Transport is a http.RoundTripper that gives each intent a key and repeats it with that key until the outcome is known
// or its limits are reached. It is safe for concurrent use if Base is. Set no Timeout on the http.Client that is
// shorter than what the retries need.
type Transport struct{ cfg Config }

// New makes a Transport.
func New(cfg Config) *Transport {
	if cfg.Base == nil {
		cfg.Base = http.DefaultTransport
	}
	if len(cfg.Methods) == 0 {
		cfg.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	if cfg.NewKey == nil {
		cfg.NewKey = NewKey
	}
	cfg.Attempts = cmp.Or(cfg.Attempts, 8)
	cfg.Attempt = cmp.Or(cfg.Attempt, 10*time.Second)
	cfg.First, cfg.Most = cmp.Or(cfg.First, 200*time.Millisecond), cmp.Or(cfg.Most, 20*time.Second)
	cfg.Patience = cmp.Or(cfg.Patience, time.Minute)
	cfg.MaxBody = cmp.Or(cfg.MaxBody, 1<<20)
	return &Transport{cfg: cfg}
}

// RoundTrip implements http.RoundTripper. When the attempts are over it returns the last answer, whatever its status,
// or an *Error. [Outcome] says what that means.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	i := intentFor(r)
	if i.key == "" {
		if !slices.Contains(t.cfg.Methods, r.Method) {
			return t.cfg.Base.RoundTrip(r)
		}
		i.key = t.cfg.NewKey()
	}
	body, err := t.body(r)
	if err != nil {
		return nil, &Error{Key: i.key, Definite: true, Err: err}
	}
	var sent atomic.Int64
	ctx := httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{WroteHeaders: func() { sent.Add(1) }})
	ctx = context.WithValue(ctx, intentKey{}, i)
	pace := backoff.NewExponentialBackOff(backoff.WithInitialInterval(t.cfg.First), backoff.WithMaxInterval(t.cfg.Most),
		backoff.WithRandomizationFactor(0.5), backoff.WithMaxElapsedTime(0))
	for {
		i.attempts++
		res, err := t.attempt(ctx, r, i.key, body)
		again, after := i.judge(res, sent.Swap(0), err)
		wait := max(pace.NextBackOff(), after)
		if !again || t.cfg.Attempts > 0 && i.attempts >= t.cfg.Attempts || t.cfg.Patience > 0 &&
			after > t.cfg.Patience || !endsInTime(ctx, wait) {
			if err != nil {
				return nil, i.failed(err)
			}
			return res, nil
		}
		if res != nil {
			drain(res.Body)
		}
		if sleep.For(ctx, wait) != nil {
			return nil, i.failed(context.Cause(ctx))
		}
	}
}

// endsInTime says whether a pause ends before the context does. If not, the answer that is there is better than a
// time-out.
func endsInTime(ctx context.Context, wait time.Duration) bool {
	end, ok := ctx.Deadline()
	return ctx.Err() == nil && (!ok || time.Now().Add(wait).Before(end))
}

// body returns a function that opens the body anew for each attempt. The request's own is closed, as a RoundTripper
// must.
func (t *Transport) body(r *http.Request) (func() (io.ReadCloser, error), error) {
	if r.Body == nil || r.Body == http.NoBody {
		return func() (io.ReadCloser, error) { return r.Body, nil }, nil
	}
	defer r.Body.Close()
	if r.GetBody != nil {
		return r.GetBody, nil
	}
	from := io.Reader(r.Body)
	if t.cfg.MaxBody > 0 {
		from = io.LimitReader(r.Body, t.cfg.MaxBody+1)
	}
	kept, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("reading the request's body: %w", err)
	}
	if t.cfg.MaxBody > 0 && int64(len(kept)) > t.cfg.MaxBody {
		return nil, fmt.Errorf("the request's body is longer than the %d bytes that are kept for a retry: set its "+
			"GetBody", t.cfg.MaxBody)
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(kept)), nil }, nil
}

var errNoAnswer = errors.New("no answer within the time of one attempt")

// attempt makes one attempt. Config.Attempt limits it until the head of the answer is there; the caller's context
// limits the body.
func (t *Transport) attempt(ctx context.Context, r *http.Request, key string, body func() (io.ReadCloser, error)) (
	*http.Response, error,
) {
	ctx, cancel := context.WithCancelCause(ctx)
	out := r.Clone(ctx)
	out.Header.Set(HeaderKey, key)
	var err error
	if out.Body, err = body(); err != nil {
		cancel(nil)
		return nil, fmt.Errorf("reading the request's body again: %w", err)
	}
	var timer *time.Timer
	if t.cfg.Attempt > 0 {
		timer = time.AfterFunc(t.cfg.Attempt, func() { cancel(errNoAnswer) })
		defer timer.Stop()
	}
	res, err := t.cfg.Base.RoundTrip(out)
	if err != nil {
		if errors.Is(context.Cause(ctx), errNoAnswer) {
			err = errors.Join(errNoAnswer, err)
		}
		cancel(nil)
		return nil, err
	}
	if res.Request == nil {
		res.Request = out // Outcome finds the intent by it
	}
	res.Body = &endingBody{ReadCloser: res.Body, end: cancel}
	return res, nil
}

// endingBody frees an attempt's context when its answer has been read.
type endingBody struct {
	io.ReadCloser
	end context.CancelCauseFunc
}

// Close implements io.Closer.
func (b *endingBody) Close() error {
	err := b.ReadCloser.Close()
	b.end(nil)
	return err
}

// drain reads what is left of a short answer, so that its connection can be used again.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}
