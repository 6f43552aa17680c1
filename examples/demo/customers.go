package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// payment is a request of a customer, and the API's answer to it.
type payment struct {
	ID       string `json:"payment_id"`
	Account  string `json:"account_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// customers are clients of the payments API. They keep every answer: tables, topic, mails and charges must match them.
type customers struct {
	url    string
	cards  string // the URL for payments with a card
	n      int
	rate   int
	repeat bool // some send their request twice with one Idempotency-Key, as after a time-out
	client *http.Client

	paid    atomic.Int64
	replays atomic.Int64 // answers to repeated requests
	flagged atomic.Int64 // answers with Idempotent-Replayed: true
	mu      sync.Mutex
	answers map[string]payment // by id
}

const (
	maxConcurrent = 8
	repeatEvery   = 20 // one customer in 20 repeats the request
	cardEvery     = 10 // one customer in 10 pays with a card
	accounts      = 50
)

// withCard is how many of n payments are with a card.
func withCard(n int) int { return (n + cardEvery - 1) / cardEvery }

func newCustomers(url, cards string, n, rate int, repeat bool) *customers {
	return &customers{
		url: url, cards: cards, n: n, rate: rate, repeat: repeat, answers: map[string]payment{},
		client: &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: maxConcurrent}},
	}
}

// run makes all payments at the rate and waits for all answers.
func (c *customers) run(ctx context.Context) error {
	defer c.client.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(maxConcurrent)
	timer := time.NewTimer(0)
	defer timer.Stop()
	began := time.Now()
	for i := range c.n {
		timer.Reset(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(c.rate))))
		select {
		case <-ctx.Done():
			return errors.Join(group.Wait(), ctx.Err())
		case <-timer.C:
		}
		group.Go(func() error { return c.customer(ctx, i) })
	}
	return group.Wait()
}

// customer makes one payment. Repeated requests are sent concurrently and one after the other, by turns.
func (c *customers) customer(ctx context.Context, i int) error {
	p := payment{Account: fmt.Sprintf("account-%02d", i%accounts), Amount: int64(100 + i*37%9900), Currency: "EUR"}
	if !c.repeat || i%repeatEvery != 0 {
		return c.pay(ctx, i, p)
	}
	if i%(2*repeatEvery) != 0 {
		if err := c.pay(ctx, i, p); err != nil {
			return err
		}
		return c.pay(ctx, i, p)
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return c.pay(ctx, i, p) })
	both.Go(func() error { return c.pay(ctx, i, p) })
	return both.Wait()
}

// pay sends the request until it gets an answer, always with the same key.
func (c *customers) pay(ctx context.Context, i int, p payment) error {
	body, err := json.Marshal(map[string]any{"account_id": p.Account, "amount": p.Amount, "currency": p.Currency})
	if err != nil {
		return err
	}
	for {
		url := c.url
		if i%cardEvery == 0 {
			url = c.cards
		}
		got, replayed, err := c.post(ctx, url, fmt.Sprintf("demo-%d", i), body)
		if err == nil {
			return c.record(got, p, replayed)
		}
		if _, final := errors.AsType[finalError](err); final {
			return fmt.Errorf("payment %d: %w", i, err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// finalError is an answer that a retry would not change.
type finalError struct{ answer string }

func (e finalError) Error() string { return "the API answered " + e.answer }

func (c *customers) post(ctx context.Context, url, key string, body []byte) (p payment, replayed bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return p, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	res, err := c.client.Do(req)
	if err != nil {
		return p, false, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<16))
	if err != nil {
		return p, false, err
	}
	switch {
	case res.StatusCode == http.StatusCreated:
		return p, res.Header.Get("Idempotent-Replayed") == "true", json.Unmarshal(answer, &p)
	case res.StatusCode < 500 && res.Header.Get("Retry-After") == "":
		return p, false, finalError{res.Status + ": " + string(answer)}
	}
	return p, false, fmt.Errorf("the API answered %s", res.Status)
}

// record keeps an answer, and fails when it does not match the request.
func (c *customers) record(got, asked payment, replayed bool) error {
	id := got.ID
	asked.ID = id
	if got != asked {
		return fmt.Errorf("the API answered with payment %+v to the request for %+v", got, asked)
	}
	if replayed {
		c.flagged.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.answers[id]; known {
		c.replays.Add(1)
		return nil
	}
	c.answers[id] = got
	c.paid.Add(1)
	return nil
}
