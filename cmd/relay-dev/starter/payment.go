package main

import (
	"cmp"
	"context"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/event"
	"github.com/effectonce/effectonce/idempotency"
	"github.com/effectonce/effectonce/idempotency/httpedge"
	"github.com/effectonce/effectonce/idempotency/pgstore"
	"github.com/effectonce/effectonce/outbox"
)

// routes adds POST /payments and GET /accounts/{name}, which is what was booked, and returns what deletes expired keys.
func routes(mux *http.ServeMux, db *pgxpool.Pool) (sweep func(context.Context) error, err error) {
	keys, err := pgstore.New(db, pgstore.Config{})
	mux.HandleFunc("POST /payments", func(w http.ResponseWriter, r *http.Request) {
		res, err := pay(w, r, keys)
		httpedge.Write(w, res, err) // the first answer, or its replay
	})
	mux.HandleFunc("GET /accounts/{name}", func(w http.ResponseWriter, r *http.Request) {
		const entries = "select coalesce(json_agg(e), '[]')::text from ledger_entry e where account = $1"
		res := idempotency.Result{Header: http.Header{"Content-Type": {"application/json"}}}
		err := db.QueryRow(r.Context(), entries, r.PathValue("name")).Scan(&res.Body)
		httpedge.Write(w, res, err)
	})
	return pgstore.Sweeper{Store: keys}.Run, err
}

// pay commits the Idempotency-Key with the payment: a client that got no answer sends its request again.
func pay(w http.ResponseWriter, r *http.Request, keys *pgstore.Store) (res idempotency.Result, err error) {
	var p Payment
	key, err := httpedge.Key(r)
	if err = cmp.Or(err, httpedge.Decode(w, r, 64<<10, &p)); err != nil {
		return res, err
	}
	if p.ID != "" || p.Account == "" || len(p.Account) > 100 || strings.Contains(p.Account, "\x00") || p.Amount <= 0 {
		return res, &httpedge.Problem{Code: httpedge.CodeBadRequest, Detail: "want an account and a positive amount"}
	}
	req, err := idempotency.NewRequest(idempotency.Key{Operation: "payment.make", Value: key}, p)
	if err != nil {
		return res, err
	}
	return keys.InTx(r.Context(), req, func(ctx context.Context, tx pgx.Tx) (res idempotency.Result, err error) {
		p.ID = event.NewID().String()
		if err := record(ctx, tx, p); err != nil {
			return res, err
		}
		return httpedge.JSON(http.StatusCreated, p)
	})
}

// record writes the payment and its event. Its key, the account, has causal order; outbox.LockKeys orders two at once.
func record(ctx context.Context, tx pgx.Tx, p Payment) error {
	if _, err := tx.Exec(ctx, "insert into payment values ($1, $2, $3)", p.ID, p.Account, p.Amount); err != nil {
		return err
	}
	e, err := event.NewJSON(event.Event{Topic: "payments", Key: p.Account, Type: "PaymentMade"}, p)
	if err != nil {
		return err
	}
	return outbox.Append(ctx, tx, e)
}
