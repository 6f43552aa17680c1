// Package process is what the main of a program needs around a producer, a relay or a consumer: signals and exit codes,
// health over HTTP, and settings from environment variables, with secrets from files, for Postgres and for Kafka with
// TLS and SASL. A program is
//
//	func main() { os.Exit(process.Main(run)) }
//
//	func run(ctx context.Context) error {
//		env := process.NewEnv("SHOP_")
//		db, kafka := env.Pool(), env.Kafka()
//		if err := env.Err(); err != nil {
//			return err
//		}
//		defer db.Close()
//		...
//		health := process.Health{Ready: db.Ping, Moving: process.Moving(consume), Prepare: tables}
//		return health.Run(ctx, listener, mux, consume.Run, in.Run)
//	}
//
// The programs in examples/ are complete. Nothing here is needed to use the other packages.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/effectonce/effectonce/internal/errtree"
	"github.com/effectonce/effectonce/internal/usage"
)

// Signals returns a context that ends at the first SIGINT, SIGTERM or SIGHUP, which a terminal sends when it goes. At a
// SIGINT after that it calls again, which is expected to end the process: somebody at the keyboard does not want to
// wait for the drain. Another SIGTERM changes nothing: supervisors send it to a process and to its group, and again
// while they wait; what they want at once they do with SIGKILL. stop gives the signals back and waits for the goroutine
// that listens; call it before the program goes on to anything else.
func Signals(parent context.Context, again func(os.Signal)) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancel(parent)
	// Room for more than one: a signal that finds the channel full is dropped.
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	stopped, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for first := true; ; first = false {
			select {
			case <-stopped:
				return
			case s := <-signals:
				if !first && s == os.Interrupt {
					again(s)
					return
				}
				cancel()
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(stopped)
		<-gone
		cancel()
	}
}

// The exit codes of Main.
const (
	CodeOK     = 0 // clean, also after a signal
	CodeFailed = 1 // run returned an error
	CodeUsage  = 2 // the error is a wrong setting: see [Env.Err]
	CodeForced = 5 // a second SIGINT ended the process at once
)

// Main runs a program until it is done or a signal ends ctx, prints its error to stderr, and returns the exit code. An
// error that is only the end of ctx counts as clean. A second SIGINT exits at once with CodeForced.
func Main(run func(ctx context.Context) error) (code int) {
	ctx, stop := Signals(context.Background(), func(os.Signal) { os.Exit(CodeForced) })
	defer stop()
	err := run(ctx)
	if err == nil || ctx.Err() != nil && onlyEnd(err) {
		return CodeOK
	}
	fmt.Fprintln(os.Stderr, err)
	if _, ok := errors.AsType[*usage.Error](err); ok {
		return CodeUsage
	}
	return CodeFailed
}

// onlyEnd reports whether an error is the end of a context, and no other error was joined to it.
func onlyEnd(err error) bool {
	return errtree.Only(err, func(leaf error) bool { return errors.Is(leaf, context.Canceled) })
}
