// Package callback calls what a user has put into an Observer.
package callback

import (
	"log/slog"
	"reflect"
	"runtime/debug"
	"sync/atomic"

	"github.com/effectonce/effectonce/internal/redact"
)

// Guarded returns a struct of functions whose calls do not panic, and skips those that are nil. A panic in what counts
// events says nothing about an event, and must neither undo nor repeat what was done with it. The first panic of each
// function is logged with its stack, and then each whose number is a power of two.
func Guarded[T any](observer T, of string, log *slog.Logger) T {
	v := reflect.ValueOf(&observer).Elem()
	for i := range v.NumField() {
		do := v.Field(i)
		if do.Kind() != reflect.Func || do.IsNil() {
			continue
		}
		name, call, panics := of+"."+v.Type().Field(i).Name, reflect.ValueOf(do.Interface()), new(atomic.Int64)
		do.Set(reflect.MakeFunc(do.Type(), func(args []reflect.Value) []reflect.Value {
			defer func() {
				if p := recover(); p != nil {
					if n := panics.Add(1); n&(n-1) == 0 {
						log.Error("a callback panicked: what it was told of goes on; what it counts is wrong",
							"callback", name, "panics", n, "error", "the callback panicked"+redact.Panic(p),
							"stack", string(debug.Stack()))
					}
				}
			}()
			return call.Call(args)
		}))
	}
	return observer
}
