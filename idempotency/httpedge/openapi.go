package httpedge

import _ "embed"

//go:embed openapi.yaml
var openAPI string

// OpenAPI is a fragment of an OpenAPI 3.1 document, in YAML: the header, the answers and the problems of guarded
// operations, as components to refer to.
func OpenAPI() string { return openAPI }
