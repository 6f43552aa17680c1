package metrics

import "reflect"

// Both makes one Observer of two, of any room: each function calls the first one's and then the second one's. A struct
// of functions grows, and a copy by hand would forget the new ones. It panics when T is no struct of functions without
// results.
func Both[T any](first, second T) T {
	both := first
	a, b, to := reflect.ValueOf(first), reflect.ValueOf(second), reflect.ValueOf(&both).Elem()
	for i := range a.NumField() {
		one, two := a.Field(i), b.Field(i)
		switch {
		case two.IsNil():
		case one.IsNil():
			to.Field(i).Set(two)
		default:
			to.Field(i).Set(reflect.MakeFunc(one.Type(), func(args []reflect.Value) []reflect.Value {
				one.Call(args)
				return two.Call(args)
			}))
		}
	}
	return both
}
