package metrics

import "reflect"

// Both combines two Observers of any package: each callback calls first's and then second's. T must be a struct of
// functions without results; otherwise Both panics.
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
