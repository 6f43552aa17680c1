package ui_test

import (
	"context"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/effectonce/effectonce/ui"
)

// The pages in a service of one's own, behind its sessions.
func ExampleNew() {
	type user struct {
		Email   string
		Tenants []string
	}
	_ = func(ctx context.Context, mux *http.ServeMux, orders, ledger *pgxpool.Pool,
		session func(*http.Request) (user, error),
	) error {
		pages, err := ui.New([]ui.Database{
			{Name: "orders", Pool: orders},
			{Name: "ledger", Pool: ledger, Schema: "app"},
		}, ui.Config{
			Prefix: "/ops/events",
			Authorize: func(r *http.Request) (ui.Identity, error) {
				u, err := session(r) // yours
				return ui.Identity{
					Name: u.Email, Level: ui.Operate,
					Scope: &ui.Scope{Topics: []string{"*"}, Tenants: u.Tenants}, // nil: everything
				}, err
			},
		})
		if err != nil {
			return err
		}
		mux.Handle("/ops/events/", pages)
		go func() { _ = pages.Run(ctx) }() // takes the plots' samples while nobody looks
		return nil
	}
}
