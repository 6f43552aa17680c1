//go:build !bugs

package inbox

func seedRaise(sql string) string { return sql }
