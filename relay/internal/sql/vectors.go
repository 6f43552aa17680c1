package sql

// Vectors maps texts to their hashtextextended(text, 0), on Postgres 15 to 18 on little-endian machines.
func Vectors() map[string]int64 {
	return map[string]int64{
		"0":                                    2234665679637250028,
		"a":                                    3591986179850072241,
		"order-1":                              4600028448891172555,
		"01987f3e-7c2a-7bd0-9c1e-5f0f6a2b4c8d": -8254500986039568798,
		"ключ":                                 2835016810653770112,
		"zażółć gęślą jaźń":                    -8002851843661804906,
		"with\ttab, \"quotes\" and / slashes":  -6269486385739287181,
	}
}
