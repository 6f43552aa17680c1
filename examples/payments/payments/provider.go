package payments

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/effectonce/effectonce/idempotency/guard"
	"github.com/effectonce/effectonce/outcome"
)

// Charge is a request to charge a card.
type Charge struct {
	// Key is the same in every attempt. Find looks the charge up by it.
	Key       string `json:"-"`
	AccountID string `json:"account_id"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

// Provider charges cards. An outcome.Terminal error is a final refusal, an outcome.Retryable one means that
// nothing was charged; after any other error the card may have been charged.
type Provider interface {
	// Charge charges a card and returns the provider's reference.
	Charge(ctx context.Context, c Charge) (reference string, err error)
	// Find returns the reference of the charge with a key, or "" if it did not happen and cannot happen any more. While
	// the provider works at it, it returns an error.
	Find(ctx context.Context, key string) (reference string, err error)
}

// settled is the longest time for which the provider works at a request, whether or not its client still waits. Only
// then may Find's "" count as not charged. Take it from the provider's contract; the client's time-out says nothing.
const settled = 2 * time.Minute

// HTTPProvider returns the Provider at a URL that has the API of package cards. timeout bounds one request, default 5
// s; the provider may work on after it, see settled.
func HTTPProvider(base string, timeout time.Duration) (Provider, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, errors.New("the card provider's URL must be http://host or https://host")
	}
	if timeout <= 0 {
		timeout = 5 * time.Second
	}
	return &httpProvider{base: u, client: &http.Client{Timeout: timeout, Transport: guard.SendOnce(nil)}}, nil
}

type httpProvider struct {
	base   *url.URL
	client *http.Client
}

// Charge implements [Provider].
func (p *httpProvider) Charge(ctx context.Context, c Charge) (string, error) {
	body, err := json.Marshal(c)
	if err != nil {
		return "", outcome.Retryable(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.base.JoinPath("charges").String(),
		bytes.NewReader(body))
	if err != nil {
		return "", outcome.Retryable(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", c.Key)
	reference, status, err := p.do(req)
	switch {
	case err != nil:
		return "", err
	case status == http.StatusCreated:
		return reference, nil
	case status == http.StatusPaymentRequired:
		return "", outcome.Terminal(codeDeclined, errors.New("the provider refused the card"))
	case status == http.StatusTooManyRequests:
		return "", outcome.Retryable(errors.New("the provider is busy"))
	}
	return "", fmt.Errorf("the provider answered %d", status)
}

// Find implements [Provider].
func (p *httpProvider) Find(ctx context.Context, key string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base.JoinPath("charges", key).String(), nil)
	if err != nil {
		return "", err
	}
	reference, status, err := p.do(req)
	switch {
	case err != nil:
		return "", err
	case status == http.StatusOK:
		return reference, nil
	case status == http.StatusNotFound:
		return "", nil
	case status == http.StatusPaymentRequired:
		return "", outcome.Terminal(codeDeclined, errors.New("the provider refused the card"))
	}
	return "", fmt.Errorf("the provider answered %d", status)
}

func (p *httpProvider) do(req *http.Request) (reference string, status int, err error) {
	res, err := p.client.Do(req)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" { // nothing was sent
			return "", 0, outcome.Retryable(err)
		}
		return "", 0, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	if err != nil {
		return "", 0, err
	}
	var answer struct{ Reference string }
	if res.StatusCode < 300 {
		if err := json.Unmarshal(body, &answer); err != nil || answer.Reference == "" {
			return "", 0, errors.New("the provider's answer has no reference")
		}
	}
	return answer.Reference, res.StatusCode, nil
}
