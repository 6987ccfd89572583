targetScope = 'subscription'

@description('Name of the azd environment; it is part of the names of all resources.')
@minLength(1)
@maxLength(20)
param environmentName string

@description('Region of all resources; it must offer Flex Consumption.')
param location string

@description('Object id of who deploys: the Entra administrator of the database server.')
param administratorId string

@description('Name of who deploys: of a person the user principal name, of a pipeline the name of its service principal.')
param administratorName string

@description('Kind of who deploys.')
@allowed(['Group', 'ServicePrincipal', 'User'])
param administratorType string = 'User'

@description('Address from which the administrator makes the tables; empty: from inside Azure only.')
param administratorAddress string = ''

@description('Who gets the alerts; empty: they are only shown in the portal.')
param alertEmail string = ''

var suffix = '${environmentName}-${take(uniqueString(subscription().id, environmentName, location), 6)}'
var tags = { 'azd-env-name': environmentName }

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: 'rg-${suffix}'
  location: location
  tags: tags
}

module monitoring 'monitoring.bicep' = {
  name: 'monitoring'
  scope: group
  params: {
    suffix: suffix
    location: location
    tags: tags
    alertEmail: alertEmail
  }
}

module database 'database.bicep' = {
  name: 'database'
  scope: group
  params: {
    suffix: suffix
    location: location
    tags: tags
    administratorId: administratorId
    administratorName: administratorName
    administratorType: administratorType
    administratorAddress: administratorAddress
  }
}

module app 'app.bicep' = {
  name: 'app'
  scope: group
  params: {
    suffix: suffix
    location: location
    tags: tags
    databaseHost: database.outputs.host
    databaseName: database.outputs.name
    insightsName: monitoring.outputs.insightsName
  }
}

// azd puts these into its environment, where infra/grant.sh finds them.
output DATABASE_HOST string = database.outputs.host
output DATABASE_NAME string = database.outputs.name
output DATABASE_ADMINISTRATOR string = administratorName
output APP_IDENTITY string = app.outputs.identityName
