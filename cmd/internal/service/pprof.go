package service

import (
	"net/http"
	"net/http/pprof"

	"github.com/effectonce/effectonce/internal/loopback"
)

// Pprof adds /debug/pprof/ for clients on this machine only: it shows the content of memory.
func Pprof(h http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("/debug/pprof/", onlyHere(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", noCommandLine)
	mux.HandleFunc("/debug/pprof/profile", onlyHere(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", onlyHere(pprof.Symbol))
	mux.HandleFunc("/debug/pprof/trace", onlyHere(pprof.Trace))
	return mux
}

// onlyHere refuses remote clients. A forwarded port (ssh -L, kubectl port-forward) counts as local.
func onlyHere(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !loopback.Request(r) {
			http.Error(w, "/debug/pprof/ shows memory's content, and answers to this machine only, as localhost and "+
				"not through a proxy: forward the port", http.StatusForbidden)
			return
		}
		h(w, r)
	}
}

// noCommandLine replaces /debug/pprof/cmdline: arguments may contain a password.
func noCommandLine(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "the command line is not shown", http.StatusForbidden)
}
