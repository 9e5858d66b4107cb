// Package admin has the handlers of the administration over HTTP: topics, groups, address settings,
// throttles, the progress of groups, parked message groups and dead letters. A handler reads a
// request, asks the [Engine], and returns the response as a value for JSON. It knows neither the
// table of routes nor the order in which a request is authenticated and counted.
package admin
