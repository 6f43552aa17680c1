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

// HeaderKey is the header with the key of an intent.
const HeaderKey = "Idempotency-Key"

// headerReplayed is the header of a replayed answer.
const headerReplayed = "Idempotent-Replayed"

// NewKey returns a key for a new intent: a random UUID.
func NewKey() string { return uuid.NewString() }

// Config sets a Transport. The zero value is safe.
type Config struct {
	// Base makes the single attempts. Default http.DefaultTransport.
	Base http.RoundTripper
	// Methods are the methods whose requests get a key and are retried; others pass to Base once. Default POST and
	// PATCH. A request with a key is always retried.
	Methods []string
	// MaxAttempts is the maximum number of attempts at an intent. Default 8; negative: until its context ends.
	MaxAttempts int
	// AttemptTimeout bounds an attempt until the header of its answer. Default 10 s; negative: none. If it is shorter
	// than the server's work, retries arrive while the work is in progress.
	AttemptTimeout time.Duration
	// MinDelay and MaxDelay are the first and the longest delay between two attempts, which jitter changes by up to a
	// half. Default 200 ms and 20 s.
	MinDelay, MaxDelay time.Duration
	// MaxRetryAfter is the longest Retry-After to wait for; an answer with a longer one is returned at once. Default 1
	// min; negative: none.
	MaxRetryAfter time.Duration
	// MaxBody is the maximum size of a body that is buffered for retries, if the request has no GetBody. A larger one
	// is an error before any attempt. Default 1 MiB; negative: none.
	MaxBody int64
	// NewKey returns the key for a request without one. Default the function NewKey.
	NewKey func() string
}

// Transport is a http.RoundTripper that adds a key to each intent and retries it with this key until its outcome is
// known or a limit is reached. It is safe for concurrent use if Base is. A Timeout of the http.Client includes all
// retries.
type Transport struct{ cfg Config }

// New returns a Transport.
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
	cfg.MaxAttempts = cmp.Or(cfg.MaxAttempts, 8)
	cfg.AttemptTimeout = cmp.Or(cfg.AttemptTimeout, 10*time.Second)
	cfg.MinDelay = cmp.Or(cfg.MinDelay, 200*time.Millisecond)
	cfg.MaxDelay = cmp.Or(cfg.MaxDelay, 20*time.Second)
	cfg.MaxRetryAfter = cmp.Or(cfg.MaxRetryAfter, time.Minute)
	cfg.MaxBody = cmp.Or(cfg.MaxBody, 1<<20)
	return &Transport{cfg: cfg}
}

// RoundTrip implements http.RoundTripper. After the last attempt it returns its answer, whatever its status, or an
// *Error; see [Outcome].
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
	delays := backoff.NewExponentialBackOff(backoff.WithInitialInterval(t.cfg.MinDelay),
		backoff.WithMaxInterval(t.cfg.MaxDelay), backoff.WithRandomizationFactor(0.5), backoff.WithMaxElapsedTime(0))
	for {
		i.attempts++
		res, err := t.attempt(ctx, r, i.key, body)
		retry, retryAfter := i.record(res, sent.Swap(0), err)
		delay := max(delays.NextBackOff(), retryAfter)
		if !retry || t.cfg.MaxAttempts > 0 && i.attempts >= t.cfg.MaxAttempts ||
			t.cfg.MaxRetryAfter > 0 && retryAfter > t.cfg.MaxRetryAfter || !endsInTime(ctx, delay) {
			if err != nil {
				return nil, i.newError(err)
			}
			return res, nil
		}
		if res != nil {
			drain(res.Body)
		}
		if sleep.For(ctx, delay) != nil {
			return nil, i.newError(context.Cause(ctx))
		}
	}
}

// endsInTime reports whether a delay ends before the context. If not, the last answer is better than a timeout.
func endsInTime(ctx context.Context, delay time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() == nil && (!ok || time.Now().Add(delay).Before(deadline))
}

// body returns a function that opens the body for each attempt. It closes the request's own, as a RoundTripper must.
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
	buffered, err := io.ReadAll(from)
	if err != nil {
		return nil, fmt.Errorf("read the request's body: %w", err)
	}
	if t.cfg.MaxBody > 0 && int64(len(buffered)) > t.cfg.MaxBody {
		return nil, fmt.Errorf("the request's body is longer than the %d bytes that are buffered for a retry: set "+
			"its GetBody", t.cfg.MaxBody)
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buffered)), nil }, nil
}

var errAttemptTimeout = errors.New("no answer within AttemptTimeout")

// attempt makes one attempt. Config.AttemptTimeout bounds it until the answer's header, the caller's context the body.
func (t *Transport) attempt(ctx context.Context, r *http.Request, key string, body func() (io.ReadCloser, error)) (
	*http.Response, error,
) {
	ctx, cancel := context.WithCancelCause(ctx)
	out := r.Clone(ctx)
	out.Header.Set(HeaderKey, key)
	var err error
	if out.Body, err = body(); err != nil {
		cancel(nil)
		return nil, fmt.Errorf("open the request's body again: %w", err)
	}
	var timer *time.Timer
	if t.cfg.AttemptTimeout > 0 {
		timer = time.AfterFunc(t.cfg.AttemptTimeout, func() { cancel(errAttemptTimeout) })
		defer timer.Stop()
	}
	res, err := t.cfg.Base.RoundTrip(out)
	if err != nil {
		if errors.Is(context.Cause(ctx), errAttemptTimeout) {
			err = errors.Join(errAttemptTimeout, err)
		}
		cancel(nil)
		return nil, err
	}
	if res.Request == nil {
		res.Request = out // Outcome reads the intent from its context
	}
	res.Body = &cancelingBody{ReadCloser: res.Body, cancel: cancel}
	return res, nil
}

// cancelingBody cancels an attempt's context when its answer is closed.
type cancelingBody struct {
	io.ReadCloser
	cancel context.CancelCauseFunc
}

// Close implements io.Closer.
func (b *cancelingBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// drain reads the rest of a short answer, so that its connection can be reused.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
	_ = body.Close()
}
