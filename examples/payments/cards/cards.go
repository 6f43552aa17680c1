// Package cards is a fake card provider. It books charges in its own ledger, with which tests compare the payments, and
// fails on demand.
package cards

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync"
)

// Charge is one charge of a card.
type Charge struct {
	// Key is the caller's idempotency key, by which the charge can be looked up.
	Key       string `json:"key"`
	Reference string `json:"reference"`
	AccountID string `json:"account_id"`
	Amount    int64  `json:"amount"`
	Currency  string `json:"currency"`
}

// Verdict is what the provider does with a request to charge.
type Verdict int

const (
	// Accept books the charge and answers 201.
	Accept Verdict = iota
	// Refuse declines the card and answers 402.
	Refuse
	// Busy books nothing and answers 429.
	Busy
	// TimeOutBefore books nothing and does not answer.
	TimeOutBefore
	// TimeOutAfter books the charge and does not answer.
	TimeOutAfter
)

// Config configures a Provider. The zero value accepts everything.
type Config struct {
	// Decide returns the verdict on a request; attempt counts those with the same key, from 1. Default: Accept.
	Decide func(c Charge, attempt int) Verdict
	// IgnoreKeys books a charge for every request, also for a known key. Default: a known key gets the first answer.
	IgnoreKeys bool
	// Booked is called after a charge was booked and before the answer. Optional.
	Booked func(c Charge)
	// Webhook is a URL that gets a Notice of each charge before the answer. Optional.
	Webhook string
	// WebhookCalls is the number of webhook calls for one charge. Default 1.
	WebhookCalls int
}

// Provider is a card provider. It is safe for concurrent use. Use New.
type Provider struct {
	cfg Config

	mu       sync.Mutex
	ledger   []Charge
	refused  map[string]bool
	attempts map[string]int
}

// New makes a provider with an empty ledger.
func New(cfg Config) *Provider {
	if cfg.Decide == nil {
		cfg.Decide = func(Charge, int) Verdict { return Accept }
	}
	if cfg.Booked == nil {
		cfg.Booked = func(Charge) {}
	}
	cfg.WebhookCalls = max(cfg.WebhookCalls, 1)
	return &Provider{cfg: cfg, refused: map[string]bool{}, attempts: map[string]int{}}
}

// Ledger returns all booked charges in order.
func (p *Provider) Ledger() []Charge {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.ledger)
}

// Attempts returns the number of charge requests with this key.
func (p *Provider) Attempts(key string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.attempts[key]
}

// Handler is the provider's API. POST /charges with an Idempotency-Key answers 201 with the Charge, 402, or 429. GET
// /charges/{key} answers 200 with the Charge, 402, or 404.
func (p *Provider) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", p.charge)
	mux.HandleFunc("GET /charges/{key}", p.find)
	return mux
}

func (p *Provider) charge(w http.ResponseWriter, r *http.Request) {
	var c Charge
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&c); err != nil || c.Amount <= 0 {
		http.Error(w, "invalid charge", http.StatusBadRequest)
		return
	}
	c.Key = r.Header.Get("Idempotency-Key")
	p.mu.Lock()
	p.attempts[c.Key]++
	attempt := p.attempts[c.Key]
	p.mu.Unlock()
	verdict := p.cfg.Decide(c, attempt)
	if verdict != TimeOutBefore && verdict != Busy {
		c = p.book(r, c, verdict)
	}
	switch verdict {
	case Busy:
		http.Error(w, "busy", http.StatusTooManyRequests)
		return
	case TimeOutBefore, TimeOutAfter:
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	p.answer(w, http.StatusCreated, c.Key)
}

// book books the charge unless its key has one.
func (p *Provider) book(r *http.Request, c Charge, verdict Verdict) Charge {
	p.mu.Lock()
	if known, ok := p.lookup(c.Key); ok && !p.cfg.IgnoreKeys {
		p.mu.Unlock()
		return known
	}
	if verdict == Refuse {
		p.refused[c.Key] = true
		p.mu.Unlock()
		return c
	}
	c.Reference = "charge-" + strconv.Itoa(len(p.ledger)+1)
	p.ledger = append(p.ledger, c)
	p.mu.Unlock()
	p.cfg.Booked(c)
	if p.cfg.Webhook != "" {
		for range p.cfg.WebhookCalls {
			p.notify(r, c)
		}
	}
	return c
}

// lookup returns the charge of a key. The caller holds p.mu.
func (p *Provider) lookup(key string) (Charge, bool) {
	i := slices.IndexFunc(p.ledger, func(c Charge) bool { return c.Key == key })
	if i < 0 {
		return Charge{}, false
	}
	return p.ledger[i], true
}

func (p *Provider) find(w http.ResponseWriter, r *http.Request) {
	p.answer(w, http.StatusOK, r.PathValue("key"))
}

func (p *Provider) answer(w http.ResponseWriter, found int, key string) {
	p.mu.Lock()
	c, ok := p.lookup(key)
	refused := p.refused[key]
	p.mu.Unlock()
	switch {
	case ok:
		body, _ := json.Marshal(c) // cannot fail
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(found)
		_, _ = w.Write(body)
	case refused:
		http.Error(w, "card_declined", http.StatusPaymentRequired)
	default:
		http.Error(w, "no such charge", http.StatusNotFound)
	}
}

// Notice is the body of a webhook call. It arrives at least once; receivers deduplicate by ID.
type Notice struct {
	ID     string `json:"id"`
	Charge Charge `json:"charge"`
}

// notify calls the webhook. Unlike a real provider it does not retry.
func (p *Provider) notify(r *http.Request, c Charge) {
	body, _ := json.Marshal(Notice{ID: "notice-" + c.Reference, Charge: c}) // cannot fail
	req, err := http.NewRequestWithContext(r.Context(), http.MethodPost, p.cfg.Webhook, bytes.NewReader(body))
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	if res, err := http.DefaultClient.Do(req); err == nil {
		_ = res.Body.Close()
	}
}
