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

// payment is what a customer asked for and was told.
type payment struct {
	ID       string `json:"payment_id"`
	Account  string `json:"account_id"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
}

// customers are many clients of the payments API. They remember every answer: that is what the rest has to agree with.
type customers struct {
	url    string
	cards  string // the URL for payments with a card
	n      int
	rate   int
	twice  bool // some ask twice with one Idempotency-Key, as after a time-out
	client *http.Client

	paid    atomic.Int64
	replays atomic.Int64 // answers to requests that had one before
	flagged atomic.Int64 // answers that said they were replays
	mu      sync.Mutex
	told    map[string]payment // by id
}

const (
	atOnce     = 8  // requests under way
	twiceEvery = 20 // every so many customers ask twice
	cardEvery  = 10 // every so many pay with a card
	accounts   = 50
)

// withCard is how many of n payments are with a card.
func withCard(n int) int { return (n + cardEvery - 1) / cardEvery }

func newCustomers(url, cards string, n, rate int, twice bool) *customers {
	return &customers{
		url: url, cards: cards, n: n, rate: rate, twice: twice, told: map[string]payment{},
		client: &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: atOnce}},
	}
}

// run makes all payments at the rate, and returns when each has its answer.
func (c *customers) run(ctx context.Context) error {
	defer c.client.CloseIdleConnections()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
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
		group.Go(func() error { return c.one(ctx, i) })
	}
	return group.Wait()
}

// one is one customer's payment. Those who ask twice do it at once or one after the other, by turns.
func (c *customers) one(ctx context.Context, i int) error {
	p := payment{Account: fmt.Sprintf("account-%02d", i%accounts), Amount: int64(100 + i*37%9900), Currency: "EUR"}
	if !c.twice || i%twiceEvery != 0 {
		return c.pay(ctx, i, p)
	}
	if i%(2*twiceEvery) != 0 {
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

// pay asks until there is an answer, always with the same key.
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
			return c.note(got, p, replayed)
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

// finalError is an answer that will not change.
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

// note keeps an answer, and fails when two answers to one request differ.
func (c *customers) note(got, asked payment, replayed bool) error {
	id := got.ID
	asked.ID = id
	if got != asked {
		return fmt.Errorf("the API answered with another payment than was asked for: %+v instead of %+v", got, asked)
	}
	if replayed {
		c.flagged.Add(1)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.told[id]; known {
		c.replays.Add(1)
		return nil
	}
	c.told[id] = got
	c.paid.Add(1)
	return nil
}
