// Package permission has the tables of the needs of each request, for every RPC and every HTTP
// route. A request without an entry needs administrator rights for the whole broker. The tables are
// pure: package gate checks whether a client meets the needs of a request.
package permission
