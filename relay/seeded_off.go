//go:build !bugs

package relay

func seed(*queries, func(sql string) string) {}

func seedOperator(*operatorQueries, func(sql string) string) {}
