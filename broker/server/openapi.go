package server

import (
	_ "embed" // for openapiYAML
	"net/http"
)

//go:embed openapi.yaml
var openapiYAML []byte

// openapi answers with the description of everything over HTTP.
func (s *Server) openapi(w http.ResponseWriter, _ *http.Request) (int, any, error) {
	w.Header().Set("Content-Type", "application/yaml")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, err := w.Write(openapiYAML)
	return 0, nil, err
}
